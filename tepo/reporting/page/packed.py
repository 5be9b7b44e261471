"""Parts of the page that are compressed, so that it stays small: its script unpacks them when they are shown."""

import gzip
import json
from base64 import b64encode
from typing import Any


def packed(content: Any) -> str:
    """A text, or another value as JSON, as gzip in base64 (no time stamp: the same content gives the same text)."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b64encode(gzip.compress(text.encode(), compresslevel=7, mtime=0)).decode()
