"""The file of --mcp-config, and its mistakes."""

import json

import pytest

from mindspore_serving import server
from mindspore_serving.errors import StartError
from mindspore_serving.mcp.config import read_config
from tests.ports import free_port


def write(tmp_path, servers):
    path = tmp_path / "mcp.json"
    path.write_text(servers if isinstance(servers, str) else json.dumps({"mcpServers": servers}))
    return str(path)


def test_files_of_other_programs_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2")
    servers = {
        "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "type": "stdio"},
        "web": {
            "url": "https://h/mcp",
            "type": "http",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
            "allowedTools": ["search"],
            "timeoutSeconds": 5,
        },
        "off": {"command": "x", "disabled": True},
    }
    files, web = read_config(write(tmp_path, servers)).values()
    assert (files.command, files.args, files.env) == ("npx", ("-y", "x"), {"A": "1"})
    assert web.headers == {"Authorization": "Bearer hunter2"}
    assert (web.allowed_tools, web.timeout_seconds) == (("search",), 5.0)


@pytest.mark.parametrize(
    ("servers", "text"),
    [
        ("{", "truncated"),
        ('{"servers": {}}', "missing required field `mcpServers`"),
        ("[" * 10000, "mcp.json"),
        ({"x": {}}, "has both or neither of command and url"),
        ({"x": {"command": "a", "url": "http://h"}}, "has both or neither of command and url"),
        ({"x": {"comand": "a"}}, "has 'comand', expected command, args,"),
        ({"x": {"comand": "a"}}, "did you mean 'command'?"),
        ({"x": {"command": "a", "args": "b"}}, "Expected `array`, got `str` - at `$.args`"),
        ({"x": {"url": "file:///etc/passwd"}}, "begins with 'file', expected http://HOST"),
        ({"x": {"url": "http://h", "type": "sse"}}, "type is 'sse', expected http or"),
        ({"x": {"command": "a", "env": {"K": "${NOT_SET}"}}}, "uses ${NOT_SET}, which is not set"),
        ({"x": {"command": "a", "timeoutSeconds": 0}}, "expected over 0, at most 3600"),
        ({"x": {"command": "a", "maxOutputBytes": 1}}, "expected 256 to 1048576"),
        ({"": {"command": "a"}}, "expected a name of 1 to 64 printable characters"),
    ],
)
def test_a_mistake_is_named(tmp_path, servers, text):
    with pytest.raises(StartError) as caught:
        read_config(write(tmp_path, servers))
    assert "mcp.json" in str(caught.value)
    assert text in str(caught.value)


def test_a_file_that_is_missing_stops_the_start(tmp_path):
    missing = str(tmp_path / "none.json")
    with pytest.raises(RuntimeError, match=r"none.json' cannot be read: No such file"):
        server.start_restful_server(f"127.0.0.1:{free_port()}", mcp_config=missing)
