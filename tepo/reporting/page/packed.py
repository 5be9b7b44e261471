"""Values inside the page for its scripts, compressed."""

import base64
import gzip
import json
from typing import Any


def packed(value: Any) -> str:
    """JSON, gzip, base64; `unpack` in packed.js reads it. The same value gives the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
