"""Memory that is taken, seen from another process: of the GPU through NVIDIA's management library, without a CUDA
context of its own; on a CPU of main memory."""

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EVERY = 0.05  # seconds


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Taken:
    """Reads the first visible GPU, or main memory. Raises OSError without the library."""

    def __init__(self, device: str) -> None:
        self._library = None
        if device == "cuda":
            import torch

            self._library, self._handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
            bus = torch.cuda.get_device_properties(0)
            name = f"{bus.pci_domain_id:08x}:{bus.pci_bus_id:02x}:{bus.pci_device_id:02x}.0".encode()
            wrong = self._library.nvmlInit_v2()
            wrong |= self._library.nvmlDeviceGetHandleByPciBusId_v2(name, ctypes.byref(self._handle))
            if wrong:
                raise OSError(f"NVIDIA's management library answers with error {wrong}")

    def gib(self) -> float:
        """Memory that all processes hold, in GiB."""
        if self._library is None:
            lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
            known = {words[0]: int(words[1]) for words in lines}
            return (known["MemTotal:"] - known["MemAvailable:"]) / 2**20
        memory = _Memory()
        if wrong := self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            raise OSError(f"NVIDIA's management library answers with error {wrong}")
        return memory.used / 2**30

    @contextmanager
    def watched(self) -> Iterator[list[tuple[float, float]]]:
        """(time.time(), GiB) of every moment of a block."""
        seen, over = [(time.time(), self.gib())], threading.Event()

        def look() -> None:
            while not over.wait(_EVERY):
                seen.append((time.time(), self.gib()))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()
