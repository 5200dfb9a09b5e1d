"""The id of a request, from the client's header to the lines that workers log, and back."""

from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from mindspore_serving.client.messages import to_request
from mindspore_serving.frontends.v2.service import SERVICE as V2
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, eventually
from tests.waiting import PATIENCE

SOURCE = """
from mindspore_serving import log

@method("y")
def said(x):
    log.error("x is %s", x)
    return x

def say_all(batch):
    log.error("batch of %s", [x for (x,) in batch])
    return [x for (x,) in batch]
@register.register_method(output_names=["y"])
def together(x):
    return register.add_stage(say_all, x, outputs_count=1, batch_size=4)

@method("i")
def streamed(x):
    for i in range(2):
        log.error("piece %s of %s", i, x)
        yield i
"""
PREDICT = "/mindspore.serving.proto.MSService/Predict"
JSON = {"content-type": "application/json"}
ID = "x-request-id"


def logged(words: str) -> list[str]:
    """The lines of workers' logs with `words`, once there is one."""

    def read() -> list[str]:
        text = "".join(path.read_text() for path in Path("serving_logs").rglob("*.log*"))
        return [line for line in text.splitlines() if words in line]

    return eventually(read, what=words)


def call(calls: Calls, path: str, message: bytes, given: str | None = None) -> dict[str, str]:
    """The trailing metadata of a call."""
    with grpc.insecure_channel(calls.grpc) as channel:
        multi = channel.unary_stream(path)
        metadata = ((ID, given),) if given is not None else ()
        found = multi(message, metadata=metadata, timeout=PATIENCE)
        with suppress(grpc.RpcError):
            list(found)
        return {key: str(value) for key, value in found.trailing_metadata()}


def test_a_line_that_a_stage_logs_begins_with_the_id_of_its_request(calls: Calls) -> None:
    calls.post("toy", "said", {"x": "apple"}, {ID: "mine-1", **JSON})
    (line,) = logged("x is apple")
    assert "mine-1: x is apple" in line


def test_each_request_of_a_row_of_calls_has_its_own(calls: Calls) -> None:
    for name in ("b1", "b2"):
        calls.post("toy", "said", [{"x": f"{name}-{i}"} for i in range(3)], {ID: name})
    for name in ("b1", "b2"):
        for i in range(3):
            (line,) = logged(f"x is {name}-{i}")
            assert f"{name}: x is" in line


def test_a_batch_of_a_single_request_logs_its_id_once(calls: Calls) -> None:
    calls.post("toy", "together", [{"x": "pear"}, {"x": "plum"}], {ID: "mine-2"})
    (line,) = logged("batch of ['pear', 'plum']")
    assert "] mine-2: batch of" in line


def test_the_chunks_of_a_stream_have_the_request_id(calls: Calls) -> None:
    message = to_request("toy", "streamed", 0, {"x": "fig"})
    call(calls, PREDICT + "Stream", message, "mine-3")
    assert all("mine-3: piece" in line for line in logged("piece 1 of fig"))


@pytest.mark.parametrize("given", ["mine-5", "not good"])
def test_a_grpc_call_gets_its_id_back_as_trailing_metadata(calls: Calls, given: str) -> None:
    found = call(calls, PREDICT, to_request("toy", "said", 0, {"x": "kiwi"}), given)[ID]
    assert found == given if given == "mine-5" else found.startswith("req_")
    assert any(f"{found}: x is kiwi" in line for line in logged(f"{found}: x is kiwi"))


def test_a_failed_grpc_call_without_an_id_gets_a_new_id(calls: Calls) -> None:
    assert ID not in call(calls, PREDICT, to_request("toy", "said", 0, {"x": "lime"}))
    (line,) = logged("x is lime")
    assert "] req_" in line
    failed = call(calls, PREDICT, to_request("nobody", "said", 0, {"x": 1}))
    assert failed[ID].startswith("req_")
    refused = call(calls, f"/{V2}/ModelInfer", b"")
    assert refused[ID].startswith("req_")


def test_a_failed_grpc_call_gets_its_request_id(calls: Calls) -> None:
    assert call(calls, PREDICT, to_request("nobody", "said", 0, {"x": 1}), "mine-6")[ID] == "mine-6"


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ServerLive"])
def test_a_call_of_protocol_v2_gets_its_id_back(calls: Calls, method: str) -> None:
    message = pb.ServerLiveRequest() if method == "ServerLive" else pb.ModelInferRequest()
    assert call(calls, f"/{V2}/{method}", message.SerializeToString(), "mine-7")[ID] == "mine-7"
