"""Memory of a process: freed pieces are kept on a CPU, and segments grow on a GPU.

An update on CPU frees and takes the same few megabytes dozens of times. glibc gives them back to the system, and the
page faults cost about a tenth of an update at laptop scale (docs of `mallopt`).
"""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of glibc's malloc.h
_KEEP, _LARGEST_KEPT = 2**30, 2**25  # bytes; 32 MiB is the most that glibc takes for the second
# of oneDNN and of ideep between it and torch; each keeps 1,024 where nothing is said
_KERNEL_CACHES, _KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), 64
_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OURS = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"  # the name that vLLM's checks read


def keep_freed_memory() -> bool:
    """Ask glibc to keep up to 1 GiB of freed memory, in pieces of at most 32 MiB.
    False where the C library is another. Results do not change."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError, OSError):  # not glibc, or not a Unix
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, _KEEP))


def limit_kernel_caches() -> None:
    """Have torch keep few kernels of half-precision products on a CPU. Each shape has one, of a megabyte and more, and
    each micro-batch another number of tokens: a run of 135M parameters grew by a gigabyte and more. Making one takes a
    millisecond, and all layers of a pass share it. To be called before the first product. What the user has set
    stays."""
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(_KERNELS))


def give_back() -> None:
    """Have glibc give back the pages it keeps between pieces in use, which grow to a gigabyte and more beside a model
    of 135M parameters. What is kept for a tiny model is better kept: see above."""
    with contextlib.suppress(AttributeError, TypeError, OSError):  # not glibc, or not a Unix
        ctypes.CDLL(None).malloc_trim(0)


def grow_segments() -> None:
    """Have torch grow its segments of GPU memory in place of taking new ones, which leaves fewer gaps between tensors
    of many sizes. To be called before the first allocation. What the user has set stays."""
    if not set(_NAMES) & set(os.environ):
        os.environ[_OURS[0]] = _OURS[1]
        if torch.cuda.is_initialized():  # the allocator read the variable when CUDA started
            torch._C._accelerator_setAllocatorSettings(_OURS[1])  # as vLLM does (device_allocator/alloc_conf.py)


def segments_grow(environment: Mapping[str, str]) -> bool:
    """Tell whether a process with this environment has segments that grow."""
    return any("expandable_segments:true" in environment.get(name, "").lower() for name in _NAMES)


def without_growing(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what `grow_segments` set there, for a process that has another use of its GPU."""
    return dict(pair for pair in environment.items() if pair != _OURS)


def empty(tensors: Iterable[Tensor]) -> None:
    """Free the numbers and gradients of tensors that something may still refer to: a library, the frames of an
    error."""
    for tensor in tensors:
        tensor.grad = None
        tensor.data = tensor.data.new_empty(0)


def free_bytes(device: torch.device) -> float | None:
    """Bytes that can be taken there: on a GPU what is free and what torch keeps unused; of main memory what the kernel
    calls available, None where it does not say."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return None


def free_unused() -> None:
    """Give back what nothing refers to any more, and what torch only keeps of the GPU, which is not free to others."""
    gc.collect()
    torch.cuda.empty_cache()
