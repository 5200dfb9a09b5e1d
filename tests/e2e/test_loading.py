"""A server while its servables load: nobody takes what it says then for the whole."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Calls, Script, eventually, write_servable
from tests.ports import free_port

SLOW = """
from mindspore_serving import loading
loading.reached(0.4, "reading files")
open("begun", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
def same(x):
    return x
@register.register_method(output_names=["x"])
def echo(x):
    return register.add_stage(same, x, outputs_count=1)
"""
SCRIPT = """
import os
from mindspore_serving import server
server.start_restful_server("127.0.0.1:{port}", use_status_codes=True)
server.start_grpc_server("127.0.0.1:{grpc}")
while not os.path.exists("deploy"):
    pass
here = os.getcwd()
server.start_servables([
    server.ServableStartConfig(here, name, num_parallel_workers=1) for name in ("slow", "quick")
])
"""


class Starting:
    """A start-up script; `deploys` and `loads` let it go on."""

    def __init__(self, directory: Path) -> None:
        write_servable(directory, "slow", SLOW.replace('"begun"', f"{str(directory / 'begun')!r}"))
        quick = SLOW[SLOW.index("def same") :]
        write_servable(directory, "quick", quick)
        config = directory / "slow" / "servable_config.py"
        config.write_text(config.read_text().replace('"go"', f"{str(directory / 'go')!r}"))
        self._directory = directory
        self.calls = Calls(f"127.0.0.1:{free_port()}", free_port())
        grpc = self.calls.grpc.rpartition(":")[2]
        path = directory / "start.py"
        path.write_text(SCRIPT.format(port=self.calls.http, grpc=grpc))
        self.script = Script(path)
        self.script.says("gRPC server start success")

    def go_on(self, name: str) -> None:
        (self._directory / name).touch()

    def has_begun(self) -> None:
        eventually((self._directory / "begun").exists)
        eventually(lambda: self.get("/readyz/quick")[0] == 200)

    def get(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        status, answer = self.calls.http_call("GET" if body is None else "POST", path, body)
        return status, answer.decode()


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starting]:
    made = Starting(tmp_path_factory.mktemp("loading"))
    yield made
    made.calls.close()
    made.script.end()


CHAT = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
CALL = json.dumps({"instances": [{"x": 1}]}).encode()


# The tests of this file are the life of one server, in order.


def test_before_anything_is_deployed_nothing_is_said_to_be_all(starting: Starting) -> None:
    for path, body in (("/v1/models", None), ("/v1/chat/completions", CHAT)):
        status, text = starting.get(path, body)
        assert (status, "no servable has started yet" in text) == (503, True)
    assert starting.get("/readyz")[0] == 503
    assert starting.get("/livez")[0] == 200


def test_while_a_servable_loads_no_list_is_complete(starting: Starting) -> None:
    starting.go_on("deploy")
    starting.has_begun()
    for path, body in (
        ("/v1/models", None),
        ("/v1/models/other", None),
        ("/v1/chat/completions", CHAT),
        ("/generate", b'{"inputs": "Hi"}'),
        ("/generate_stream", b'{"inputs": "Hi"}'),
        ("/models/slow/generate", b'{"inputs": "Hi"}'),
    ):
        status, text = starting.get(path, body)
        assert (status, "still loading, 70 %" in text) == (503, True), (path, text)
    assert starting.get("/v1/models/slow")[0] == 503


def test_a_loading_servable_is_not_unknown(starting: Starting) -> None:
    status, text = starting.get("/model/slow:echo", CALL)
    assert (status, "servable is not available: still loading, 40 %" in text) == (503, True)
    status, text = starting.get("/model/nothing:echo", CALL)
    assert (status, text.count("servable is not available")) == (404, 1)
    error = starting.calls.client("slow", "echo").infer({"x": 1})["error"]
    assert "still loading, 40 %" in error


def test_loaded_servables_answer_before_all_are_loaded(starting: Starting) -> None:
    assert starting.get("/model/quick:echo", CALL) == (200, '{"instances":[{"x":1}]}')


def test_readiness_says_how_far_each_is(starting: Starting) -> None:
    status, text = starting.get("/readyz")
    found = {one["name"]: one for one in json.loads(text)["servables"]}
    assert status == 503
    assert (found["slow"]["ready"], found["slow"]["reason"]) == (
        False,
        "still loading, 40 %: reading files",
    )
    assert found["quick"]["ready"]
    assert starting.get("/readyz/slow")[0] == 503
    assert starting.get("/readyz/nothing")[0] == 404
    assert starting.get("/health")[1] == "not ready: the server is still loading, 70 %"


def test_missing_servables_are_unknown_once_all_are_loaded(starting: Starting) -> None:
    starting.go_on("go")
    eventually(lambda: starting.get("/readyz")[0] == 200)
    assert starting.get("/v1/models") == (200, '{"object":"list","data":[]}')
    for path, body in (("/v1/chat/completions", CHAT), ("/generate", b"{}"), ("/nothing", None)):
        assert starting.get(path, body)[0] == 404, path
    assert starting.get("/model/slow:echo", CALL)[0] == 200
    assert starting.get("/model/slow:nothing", CALL)[0] == 404


def test_the_script_reports_loaded_servables_and_readiness(starting: Starting) -> None:
    starting.script.says("Serving: Ready after ")
    assert "  quick  version 1 loaded, " in starting.script.text
    assert starting.script.lines[-1].endswith(": slow version 1, quick version 1\n") or (
        starting.script.lines[-1].endswith(": quick version 1, slow version 1\n")
    )
