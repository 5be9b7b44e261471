from tests.support.commands import python

_ALONE = """
import os, socket
import torch
import torch.distributed as dist
from tepo.training.distributed import process_group

bound = []
socket.socket.bind = lambda self, address: bound.append(address)
process_group.start(torch.device("cpu"))
port = os.environ["MASTER_PORT"]
with socket.create_connection(("127.0.0.1", int(port))):  # the store's
    dist.destroy_process_group()
    process_group.start(torch.device("cpu"))
    assert os.environ["MASTER_PORT"] == port
print(bound)
"""


def test_a_process_without_a_launcher_has_the_port_that_its_store_binds() -> None:
    """One that is looked for and let go may be taken before the store binds it. The second group meets there too."""
    assert python("-c", _ALONE).stdout == "[]\n"
