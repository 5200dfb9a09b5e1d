"""Clients of several front ends that begin calls and send nothing: others are answered."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from mindspore_serving.frontends.mindspore.grpc import SERVICE as CLASSIC
from mindspore_serving.frontends.v2.service import SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.frontends.raw_grpc import RawGrpc
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""
NUM_CONNECTIONS, NUM_CALLS = 4, 600


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory: Path = tmp_path_factory.mktemp("shares")
    write_servable(directory, "toy", SOURCE)
    with serving(directory, config(directory, "toy"), front_ends=2) as found:
        yield found


def is_live(calls: Calls) -> bool:
    """As the master says, to whom the call is passed on."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(calls.grpc, options) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ServerLive")
        return pb.ServerLiveResponse.FromString(call(b"", timeout=PATIENCE)).live


@pytest.mark.parametrize(
    "path",
    [f"/{SERVICE}/ServerLive", f"/{SERVICE}/ModelStreamInfer", f"/{CLASSIC}/Predict"],
)
def test_calls_that_send_nothing_to_front_ends_keep_nobody_out(calls: Calls, path: str) -> None:
    port = int(calls.grpc.rpartition(":")[2])
    with ExitStack() as streams:
        for _ in range(NUM_CONNECTIONS):
            hog = RawGrpc(port, "127.0.0.2")
            streams.enter_context(hog.stream)
            for _ in range(NUM_CALLS):
                hog.call(path)
            hog.call("/no.Service/Method")
            hog.wait_until_closed(2 * NUM_CALLS + 1)  # all are read
        for number in range(8):  # connections, of which each front end has some
            assert is_live(calls)
            client = calls.client("toy", "double")
            assert client.infer({"x": number})[0]["y"] == 2 * number
