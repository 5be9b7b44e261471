"""Ranks on two machines: network namespaces of this one, each with a name that is 127.0.1.1 to itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.disaster

RANK = """\
import os, torch
from tepo.training.distributed.process_group import start
comm = start(torch.device("cpu"))
print(float(comm.all_sum(torch.ones(1))), os.environ.get("GLOO_SOCKET_IFNAME"))
"""
# One machine: its name, hosts and address. The interface is there as soon as the first machine has made it.
MACHINE = """\
set -e
hostname $NAME; ip link set lo up; printf "$HOSTS" >$FOLDER/$NAME; mount --bind $FOLDER/$NAME /etc/hosts
until ip link show $DEVICE >/dev/null 2>&1; do sleep 0.05; done
ip addr add $ADDRESS/24 dev $DEVICE; ip link set $DEVICE up
exec timeout 60 "$@" >$FOLDER/$NAME.out 2>&1
"""
BOTH = """\
ip link add ethb type veth peer name etha
NAME=b ADDRESS=10.7.7.2 DEVICE=ethb HOSTS='127.0.1.1 b\\n10.7.7.1 a\\n' RANK=1 unshare -num sh -c "$MACHINE" sh "$@" &
while ip link show ethb >/dev/null 2>&1; do ip link set ethb netns $!; sleep 0.05; done
NAME=a ADDRESS=10.7.7.1 DEVICE=etha HOSTS='127.0.1.1 a\\n' RANK=0 sh -c "$MACHINE" sh "$@"
wait
"""


@pytest.mark.parametrize("master", ["a", "10.7.7.1"])
def test_ranks_of_two_machines_meet_though_each_calls_itself_loopback(tmp_path: Path, master: str) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-num", "ip", "link"], capture_output=True).returncode:
        pytest.skip("network namespaces need root")
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": master, "MASTER_PORT": "29400"}
    variables |= {"MACHINE": MACHINE, "FOLDER": str(tmp_path)}
    words = ["unshare", "-num", "sh", "-c", BOTH, "sh", sys.executable, "-c", RANK]
    subprocess.run(words, env=os.environ | variables, capture_output=True, timeout=150)
    said = {name: (tmp_path / f"{name}.out").read_text().splitlines()[-1] for name in "ab"}
    assert said == {"a": "2.0 etha", "b": "2.0 ethb"}
