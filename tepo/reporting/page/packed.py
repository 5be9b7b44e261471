"""Values inside the page for its scripts: as JSON, or compressed where they are large."""

import base64
import gzip
import json
from typing import Any

from markupsafe import Markup


def script_json(value: Any) -> Markup:
    """JSON that can stand inside a script element whatever the texts hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def packed(value: Any) -> str:
    """JSON, gzip, base64; `unpack` in packed.js reads it. The same value gives the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
