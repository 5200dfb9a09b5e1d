"""Connections to MCP servers: honest ones, and those that hang, flood, lie or die."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.errors import ServingError, UpstreamFailed
from mindspore_serving.mcp.config import McpServerConfig
from mindspore_serving.mcp.names import McpTool
from mindspore_serving.mcp.servers import McpServers
from tests.mcp.conftest import SKIP, config, open_servers
from tests.waiting import eventually

connection = pytest.importorskip("mindspore_serving.mcp.connection", reason=SKIP)
BAD = ("twice", "many", "schema", "pages", "kind", "line", "lines", "hangs", "text")


@pytest.fixture(scope="module")
def loop() -> Iterator[BackgroundLoop]:
    made = BackgroundLoop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def servers(loop: BackgroundLoop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServers]:
    place = tmp_path_factory.mktemp("servers")
    mark = {"MARK": str(place / "mark")}
    bad = {name: config(name, timeout_seconds=0.5 if name == "hangs" else 60.0) for name in BAD}
    honest = config(env=mark, max_output_bytes=256)
    missing = McpServerConfig(command="/no/such/program")
    nobody = McpServerConfig(url="http://127.0.0.1:9/mcp")
    made = open_servers(place, honest=honest, missing=missing, nobody=nobody, **bad)
    made.mark = place / "mark"  # type: ignore[attr-defined]
    yield made
    loop.run(made.close())


def tool(server: str, name: str = "add") -> McpTool:
    return McpTool(server, name, "", {})


@pytest.fixture
def call(loop: BackgroundLoop, servers: McpServers):
    return lambda server, name="add", **arguments: loop.run(
        servers.call(tool(server, name), arguments, "me")
    )


def test_tools_are_called(call) -> None:
    assert call("honest", a=1, b=2) == ("3", False)
    assert call("honest", "fail") == ("no luck", True)
    assert call("honest", "picture") == ("see\n[image/png, not shown]", False)


def test_a_long_result_is_cut_at_a_character(call) -> None:
    text, _ = call("honest", "long")
    assert text == "\u00e9" * 128 + "\n[the first 256 of 10000 bytes]"


def test_a_process_gets_only_its_own_variables(call, monkeypatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    names = set(call("honest", "variables")[0].split())
    assert "MARK" in names
    assert not {"API_KEY", "PYTHONPATH", "PYTEST_CURRENT_TEST"} & names


def test_a_cancelled_call_is_cancelled_in_the_server(loop, servers, call) -> None:
    call("honest", a=1, b=2)  # it is connected

    async def cancel() -> None:
        running = asyncio.ensure_future(servers.call(tool("honest", "hang"), {}, "me"))
        await asyncio.sleep(0.1)  # the server may have begun it, or not
        running.cancel()
        await asyncio.wait([running])

    def is_marked() -> bool:
        loop.run(cancel())
        return servers.mark.exists()

    eventually(is_marked)
    assert call("honest", a=1, b=2) == ("3", False)


def test_a_server_that_dies_is_started_again(call) -> None:
    text, has_failed = call("honest", "die")
    assert has_failed
    assert text.endswith("its process ended: exit status 3: I have had enough")
    eventually(lambda: call("honest", a=1, b=2) == ("3", False))


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("twice", "it lists the tool 'add' twice"),
        ("many", "it lists 1000 tools, expected at most 512"),
        ("schema", "its tool 'add' has an invalid input schema: 'what' is not valid under any"),
        ("pages", "it lists over 512 tools or over 64 pages of them"),
        ("kind", "it sent an invalid answer: "),
        ("missing", "/no/such/program cannot be started: "),
        ("nobody", "All connection attempts failed"),
    ],
)
def test_a_list_that_cannot_be_used_is_an_error(loop, servers, server, problem) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        loop.run(servers.tools(server))
    assert f"MCP server {server!r} failed: " in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("line", "it sent a message of over 1048576 bytes"),
        ("lines", "it sent over 8388608 bytes or 2048 messages for one request"),
        ("hangs", "did not answer within 0.5 s"),
    ],
)
def test_a_bad_answer_is_an_error_of_its_call(call, server, problem) -> None:
    text, has_failed = call(server)
    assert has_failed
    assert problem in text
    assert call("honest", a=1, b=2) == ("3", False)


def test_lines_that_are_no_messages_are_left_out(call) -> None:
    assert call("text") == ("3", False)


def test_a_server_that_fails_is_tried_again_later(loop, servers) -> None:
    def is_told() -> bool:
        with pytest.raises(UpstreamFailed) as caught:
            loop.run(servers.tools("missing"))
        return "; it is tried again in " in str(caught.value)

    eventually(is_told)


def test_a_server_that_does_not_begin_is_late(loop, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(connection, "START", 0.1)
    silent = open_servers(tmp_path, silent=McpServerConfig(command="sleep", args=("600",)))
    with pytest.raises(ServingError, match=r"it did not answer within"):
        loop.run(silent.tools("silent"))
    loop.run(silent.close())


def test_processes_end_with_their_parent(tmp_path) -> None:
    source = """
from mindspore_serving.process.child import Child
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.command import to_program
command = ["sh", "-c", "sleep 600 & echo $!; wait"]
child = Child(to_program(command, {}, None, ChildLog(None)))
print(child.pid, child.stream.makefile().readline(), flush=True)
child.join()
"""
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [*map(int, parent.stdout.readline().split())]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    def is_gone(pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    eventually(lambda: all(map(is_gone, pids)))
