"""A machine behind a cable that is pulled: a network namespace, which needs root and `ip`."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving import server
from tests.e2e.authority import Authority
from tests.e2e.harness import eventually
from tests.e2e.machines import all_end
from tests.e2e.test_rank_machines import ask, hosts, serve_model, stages, stream

NAME = f"ranks{os.getpid()}"  # of the namespace, and of the cable
HERE, THERE = "198.18.36.1", "198.18.36.2"  # of a range for tests of networks
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        os.getuid() != 0 or not shutil.which("ip"), reason="needs root and ip (Debian: iproute2)"
    ),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def cable() -> Iterator[None]:
    """A namespace at THERE, with a cable to HERE."""
    try:
        ip("netns", "add", NAME)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made: {error.stderr.decode()}")
    try:
        ends = f"{NAME}a", f"{NAME}b"
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", NAME)
        ip("addr", "add", f"{HERE}/30", "dev", ends[0])
        ip("link", "set", ends[0], "up")
        ip("-n", NAME, "addr", "add", f"{THERE}/30", "dev", ends[1])
        for device in ("lo", ends[1]):
            ip("-n", NAME, "link", "set", device, "up")
        yield
    finally:
        ip("netns", "del", NAME)


def test_a_partition_ends_the_ranks_on_both_sides_and_heals(
    cable, start_cluster, stopped, monkeypatch
):
    monkeypatch.setattr("tests.e2e.authority.ADDRESSES", (HERE,))
    authority = Authority(stopped, "authority")
    tls = server.SSLConfig(*authority.issue("server"))
    made = start_cluster(host=HERE, ssl_config=tls, local_slots=0)
    made.join_options += ["--tls-ca", authority.ca]
    made.join("near", "--slots", "2")
    far = made.join("far", "--slots", "1", prefix=["ip", "netns", "exec", NAME])
    serve_model(made, 2, runtime="openvino", pipeline_parallel=2)
    before = ask(made)
    assert before[0] == 200
    assert made.ready("chatty") == {"near, far": 1}
    ranks = [*hosts(far), *stages(far)]
    assert len(ranks) == 2
    lines = stream(made)
    assert b"choices" in next(lines)
    ip("link", "set", f"{NAME}a", "down")
    assert b"died" in b"".join(lines)
    all_end(ranks)
    after = eventually(lambda: one[1] if (one := ask(made))[0] == 200 else None)
    assert after["choices"] == before[1]["choices"]
    assert made.ready("chatty") == {"near": 1}
    ip("link", "set", f"{NAME}a", "up")
    eventually(lambda: far.text.count("Joined") == 2)
    os.kill(*made.pids("chatty"), signal.SIGKILL)
    eventually(lambda: made.ready("chatty") == {"near, far": 1})
