"""Ranks of a run started by torchrun, the DeepSpeed launcher or Slurm: process group, device, collectives."""

import atexit
import contextlib
import ipaddress
import os
import re
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tepo.common import signals
from tepo.common.errors import UserError
from tepo.training.distributed.comm import Comm
from tepo.training.distributed.liveness import LostRank, gone

_TIMEOUT = timedelta(minutes=30)  # the longest a rank may wait for another where signs of life decide nothing
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"

_joined = 0  # process groups that this process has started
_stores: dict[tuple[str, ...], tuple[dist.Store, int, int]] = {}  # where ranks meet: kept, rank 0 serves its own


def world_size() -> int:
    """Ranks the launcher started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """This process's rank; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """This process's index on its machine, which is its GPU; 0 without a launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_world_size() -> int:
    """Ranks on this machine; 1 without a launcher."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def starts_again() -> bool:
    """True where `start` will make a second group in this process: vLLM ends torch's when it closes."""
    return _joined > 0 and not dist.is_initialized()


def start(device: torch.device) -> "TorchComm":
    """Join the process group (once), over NCCL when `device` (this rank's) is a GPU, else over gloo.
    Raises UserError when the ranks cannot find each other."""
    if "WORLD_SIZE" not in os.environ:
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ |= alone | dict(os.environ)
    os.environ.setdefault("MASTER_PORT", "0")  # the store takes one that is free
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            _join("nccl" if device.type == "cuda" else "gloo")
        except (dist.DistNetworkError, dist.DistStoreError, ValueError) as error:
            reason = str(error).splitlines()[0]
            port_in_use = "EADDRINUSE" in str(error) or "address already in use" in str(error).lower()
            what = f"the ranks cannot find each other: {reason}"
            fix = "start every rank with torchrun or deepspeed, with the same MASTER_ADDR and MASTER_PORT"
            if port_in_use:
                what, fix = f"the port of rank 0 is taken: {address}", "choose another --master-port"
            raise UserError(what, where=f"rank {rank()} of {world_size()}, {address}", fix=fix) from error
        # While Python still runs: gloo's threads abort a process that ends with them.
        atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
    return TorchComm(device)


def _join(backend: str) -> None:
    """A process group of all ranks. Each meets under keys of its own: after vLLM has ended the first, the store still
    has its addresses, to which the ranks of the second would connect for ever. The store stays: a rank that comes first
    to a second group would meet the one that rank 0 is about to end."""
    global _joined
    if _meeting() not in _stores:
        rendezvous = next(dist.rendezvous("env://", timeout=_TIMEOUT))
        if os.environ["MASTER_PORT"] == "0":
            os.environ["MASTER_PORT"] = str(rendezvous[0].port)
        _stores[_meeting()] = rendezvous
    store, number, ranks = _stores[_meeting()]
    group_store = dist.PrefixStore(f"group{_joined}", store)
    if ranks > 1:
        _choose_interface(group_store, number, ranks)
    dist.init_process_group(backend, store=group_store, rank=number, world_size=ranks, timeout=_TIMEOUT)
    _joined += 1


def _meeting() -> tuple[str, ...]:
    return tuple(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))


def _choose_interface(store: dist.Store, number: int, ranks: int) -> None:
    """Have gloo listen on the network interface that leads to the rendezvous. By itself it takes the address of the
    machine's name, which on many is 127.0.1.1, where the ranks of other machines find nobody.

    On the machine of the rendezvous the way there may be that loopback too: it takes the way to another's rank. What
    the user has set stays."""
    own_address = _own_address(os.environ["MASTER_ADDR"])
    store.set(f"address{number}", own_address)  # always: a machine where nothing is set may ask for it
    if _GLOO_INTERFACE in os.environ:
        return
    if own_address == "" or ipaddress.ip_address(own_address).is_loopback:
        others = [store.get(f"address{other}").decode() for other in range(ranks)]
        elsewhere = [other for other in others if other and not ipaddress.ip_address(other).is_loopback]
        own_address = _own_address(elsewhere[0]) if elsewhere else ""  # none: all are here, and any way will do
    import psutil  # which comes with engines for several ranks

    for name, addresses in psutil.net_if_addrs().items():
        if own_address and own_address in (address.address.partition("%")[0] for address in addresses):
            os.environ[_GLOO_INTERFACE] = name


def _own_address(peer: str) -> str:
    """The address from which this machine sends to another; empty where no way leads there. Nothing is sent."""
    try:
        family, _, _, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0].partition("%")[0]
    except OSError:
        return ""


@contextlib.contextmanager
def lost_ranks() -> Iterator[None]:
    """Say what happened when another rank dies: on several ranks a broken connection, and the SIGTERM by which the
    launcher (or Slurm) ends the ranks that are left, become a LostRank. Nothing changes in a single process."""
    if world_size() == 1:
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except RuntimeError as error:  # torch.distributed's own errors are RuntimeErrors too
        # The launcher's must not cut the message short; its SIGKILL follows.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signs = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset", "process group")
        if not any(part in str(error) for part in signs):
            raise
        match = re.search(r"Connection \w+( by peer)?|[Tt]imed out", str(error))  # in sentences about remote workers
        reason = match[0].lower() if match else type(error).__name__
        raise _lost(f"the connection to another rank broke ({reason})") from error
    signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _lost("ended from outside (SIGTERM), as the launcher does when another rank died")


def check_neighbours() -> None:
    """Raises RunFailed where another rank of this machine has died: torchrun sends SIGTERM to the others then. It does
    so too when a scheduler asks it to stop, but then they all are there."""
    if signals.lost_neighbour():
        _terminated(signal.SIGTERM, None)


def _lost(what: str) -> LostRank:
    who = gone()
    return LostRank(rank(), world_size(), f"{what}; {who}" if who else what)


class TorchComm:
    """`Comm` over torch.distributed; values may lie on any device. group: None for that of all."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None):
        self.device, self.group = device, group
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def all_sum(self, value: Tensor) -> Tensor:
        """Elementwise sum over ranks, where the value lay."""
        total = value.detach().clone().to(self.device)
        dist.all_reduce(total, group=self.group)
        return total.to(value.device)

    def all_gather(self, value: Tensor) -> list[Tensor]:
        local_values = value.detach().contiguous().to(self.device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(local_values)], device=self.device), group=self.group)
        lengths = [int(size) for size in sizes]
        padded = local_values.new_zeros(max(lengths))
        padded[: len(local_values)] = local_values
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded, group=self.group)
        return [part[:length].to(value.device) for part, length in zip(parts, lengths, strict=True)]

    def all_gather_object(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        self.all_sum(torch.zeros(1))


def beside(comm: Comm | None) -> Comm | None:
    """Give the same ranks a second thread to meet in, over a process group of its own: its collectives may come in
    between those of the first thread, in another order on each rank. All ranks call it."""
    if comm is None:
        return None
    return TorchComm(torch.device("cpu"), dist.new_group(backend="gloo", timeout=_TIMEOUT))
