"""Keep freed memory in the process.
An update on CPU frees and takes the same few megabytes dozens of times; glibc gives them back to the system and every
return costs page faults: about a tenth of an update at laptop scale (docs of `mallopt`)."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of glibc's malloc.h
_KEEP, _LARGEST_KEPT = 2**30, 2**25  # bytes; 32 MiB is the most that glibc takes for the second


def keep_freed_memory() -> bool:
    """Ask glibc to keep up to 1 GiB of freed memory, in pieces of at most 32 MiB.
    False where the C library is another. Results do not change."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError, OSError):  # not glibc, or not a Unix
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, _KEEP))
