"""Routes that change the server for others: each needs the operator's permission."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from mindspore_serving import log
from mindspore_serving.frontends.v2.service import SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def same(x):
    return x
"""
REGION = {"key": "/any", "offset": 0, "byte_size": 1}
QUIET = {"log_info": False, "log_warning": False, "log_error": False}
CHANGES = [  # verb, path, body
    ("POST", "/v2/logging", QUIET),
    ("POST", "/v2/logging", {"log_error": True}),
    ("POST", "/v2/repository/models/toy/load", {}),
    ("POST", "/v2/repository/any/models/toy/load", {}),
    ("POST", "/v2/repository/models/toy/unload", {}),
    ("POST", "/v2/repository/any/models/toy/unload", {}),
    ("POST", "/v2/systemsharedmemory/region/r/register", REGION),
    ("POST", "/v2/systemsharedmemory/region/r/unregister", {}),
    ("POST", "/v2/systemsharedmemory/unregister", {}),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a"}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": "a"}),
    ("POST", "/api/pull", {"model": "a"}),
    ("POST", "/api/create", {"model": "a"}),
    ("POST", "/api/copy", {"source": "toy", "destination": "a"}),
    ("DELETE", "/api/delete", {"model": "toy"}),
]
PERMITTED = {  # the methods of protocol v2 that need permission, with a request each
    "LogSettings": pb.LogSettingsRequest(
        settings={name: {"bool_param": value} for name, value in QUIET.items()}
    ),
    "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name="toy"),
    "RepositoryModelUnload": pb.RepositoryModelUnloadRequest(model_name="toy"),
    "SystemSharedMemoryRegister": pb.SystemSharedMemoryRegisterRequest(
        name="r", key="/any", byte_size=1
    ),
    "SystemSharedMemoryStatus": pb.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryUnregister": pb.SystemSharedMemoryUnregisterRequest(),
}
FREE = {  # that change nothing
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig"),
    *("ModelInfer", "ModelStreamInfer", "ModelStatistics", "RepositoryIndex"),
    *("TraceSetting", "CudaSharedMemoryStatus", "CudaSharedMemoryUnregister"),
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("permissions")
    write_servable(directory, "toy", SOURCE)
    with serving(directory, config(directory, "toy"), use_status_codes=True) as found:
        yield found


@pytest.mark.parametrize(("verb", "path", "body"), CHANGES)
def test_a_route_that_changes_the_server_is_refused_without_permission(
    calls: Calls, verb: str, path: str, body: Any
) -> None:
    before = log.get_level()
    headers = {"content-type": "application/json"}
    status, answer = calls.http_call(verb, path, json.dumps(body), headers)
    assert status == 403, answer
    assert log.get_level() == before
    assert calls.post("toy", "same", {"x": 1}) == {"instances": [{"y": 1}]}


@pytest.mark.parametrize("name", PERMITTED)
def test_a_method_that_changes_the_server_is_refused_without_permission(
    calls: Calls, name: str
) -> None:
    before = log.get_level()
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{name}")
        with pytest.raises(grpc.RpcError) as refused:
            call(PERMITTED[name].SerializeToString(), timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert log.get_level() == before


def test_every_method_of_protocol_v2_is_known_to_change_the_server_or_not() -> None:
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    assert {one.name for one in service.methods} == FREE | PERMITTED.keys()


def test_log_levels_may_be_read(calls: Calls) -> None:
    for verb, body in (("GET", None), ("POST", "{}")):
        status, answer = calls.http_call(verb, "/v2/logging", body)
        assert (status, "log_error" in json.loads(answer)) == (200, True)
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.unary_unary(f"/{SERVICE}/LogSettings")
        found = pb.LogSettingsResponse.FromString(call(b"", timeout=PATIENCE))
    assert found.settings["log_error"].bool_param is True
