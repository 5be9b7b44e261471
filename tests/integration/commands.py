"""The real commands, as a user types them."""

import os
import subprocess
import sys
from pathlib import Path


def tepo(*words: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; more environment variables as keywords."""
    command = [sys.executable, "-m", "tepo_cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)


def started(*words: str | Path, **environment: str) -> "subprocess.Popen[bytes]":
    """Start a command and leave it running."""
    command = [sys.executable, "-m", "tepo_cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment)
