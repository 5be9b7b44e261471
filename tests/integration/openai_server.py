"""vLLM's own OpenAI-compatible server, started as its documents say."""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tepo.common import interpreter
from tests.support.commands import free_port


@contextmanager
def openai_server(folder: Path, name: str, *words: str) -> Iterator[str]:
    """The address of a server of the model in a folder, under that name, with its `/v1`."""
    port = free_port()
    words = ("--model", str(folder), "--served-model-name", name, "--port", str(port), "--host", "127.0.0.1", *words)
    known = interpreter.ONE_THREAD | {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1"}
    command = interpreter.command("-m", "vllm.entrypoints.openai.api_server", *words)
    server = subprocess.Popen([*command, "--dtype", "float32", "--enforce-eager"], env=os.environ | known)
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).close()
                break
            except OSError:
                time.sleep(1)
        assert server.poll() is None
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()
