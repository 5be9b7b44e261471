import sys

if sys.platform == "win32":  # what is imported next would fail with a traceback
    from tepo.common.system import unsupported

    raise SystemExit(f"error: {unsupported()}")
