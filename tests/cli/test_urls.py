"""The URL of a server, which each command takes first, and what is said of a wrong one."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mindspore_serving import cli
from mindspore_serving.cli import commands
from mindspore_serving.cli.endpoint import no_answer, to_endpoint
from mindspore_serving.cli.settings import Access
from mindspore_serving.cli.urls import SERVER_URL
from tests.cli.commands import call
from tests.cli.conftest import Served

CHOICES = commands.parsers(commands.parser())
OF_SERVERS = {
    *("chat", "bench", "predict", "status", "models", "load", "unload"),
    *("load-lora", "unload-lora", "log-level"),
}


def arguments(command: str) -> list[str]:
    actions = CHOICES[command]._actions
    return [action.dest for action in actions if not action.option_strings]


@pytest.mark.parametrize("command", sorted(OF_SERVERS))
def test_commands_for_a_server_take_its_url_first_with_the_same_default(command: str) -> None:
    others = ["x"] * (len(arguments(command)) - 1)
    parse = CHOICES[command].parse_args
    assert arguments(command)[0] == "url"
    assert parse(["http://a:1", *others]).url == "http://a:1"
    if command != "log-level":
        assert parse(others).url == SERVER_URL


@pytest.mark.parametrize(
    "words", ["--reload http://a:1 x", "http://a:1 --reload x", "http://a:1 x --reload"]
)
def test_options_stand_anywhere_among_arguments(words: str) -> None:
    parsed = CHOICES["load"].parse_args(words.split())
    assert (parsed.url, parsed.name, parsed.reload) == ("http://a:1", "x", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("load http://a:1", "'http://a:1' is a URL, where NAME is expected"),
        ("load x 127.0.0.1:1", "the arguments are [URL] NAME"),
        ("predict http://a:1 x {}", "the arguments are [URL] SERVABLE METHOD INPUTS"),
        ("status x", "'x': expected a URL such as http://127.0.0.1:1500"),
        ("status http://a:1 --http a:2", "--http is the older form of URL"),
        ("log-level debgu", "expected debug, info, warning, error; did you mean 'debug'?"),
    ],
)
def test_a_url_at_another_place_is_told(words: str, told: str, capsys) -> None:
    assert cli.main(words.split()) == 2
    assert told in capsys.readouterr().err


@pytest.mark.e2e
def test_both_forms_of_the_url_reach_a_server(served: Served, tmp_path: Path) -> None:
    address = served.url.removeprefix("http://")
    for words in ([served.url], [address], [f"{served.url}/v1"], ["--http", address]):
        done = call(["status", *words], tmp_path)
        assert (done.returncode, "words" in done.stdout) == (0, True), words


@pytest.mark.e2e
@pytest.mark.parametrize("command", ["status", "models", "chat", "log-level"])
def test_a_grpc_port_is_recognised_by_each_command(
    served: Served, tmp_path: Path, command: str
) -> None:
    prompt = ["--prompt", "a"] * (command == "chat")
    done = call([command, served.address, *prompt], tmp_path)
    assert done.returncode == 1
    assert f"{served.address} is a gRPC port: give the URL of the HTTP port" in done.stderr


@pytest.mark.e2e
def test_a_grpc_port_is_recognised_when_its_method_is_measured(
    served: Served, tmp_path: Path
) -> None:
    (tmp_path / "body").write_text('{"instances": [{"x": 1}]}')
    url = f"http://{served.address}/model/words:double"
    done = call(["bench", url, "--body", "body"], tmp_path)
    assert (done.returncode, "is a gRPC port: give the URL" in done.stderr) == (1, True)


def test_a_path_given_to_chat_is_answered_with_run(tmp_path: Path, capsys) -> None:
    assert cli.main(["chat", str(tmp_path), "--prompt", "a"]) == 2
    assert f"write mindspore-serving run {tmp_path}" in capsys.readouterr().err


@pytest.mark.e2e
def test_a_server_without_tls_is_recognised(served: Served, tmp_path: Path) -> None:
    address = served.url.removeprefix("http://")
    done = call(["status", f"https://{address}"], tmp_path)
    assert f"{address} does not use TLS: write http://{address}" in done.stderr


class _Other(BaseHTTPRequestHandler):
    """Server of something else, which answers with a text."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write("nothing \u00e0 voir".encode())

    def log_message(self, *_: object) -> None:
        pass


def test_the_text_of_another_server_is_shown_as_text(capsys) -> None:
    with HTTPServer(("127.0.0.1", 0), _Other) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        status = cli.main(["status", f"127.0.0.1:{other.server_port}"])
        thread.join()
    assert status == 1
    assert "/servables: nothing \u00e0 voir (status 404)" in capsys.readouterr().err


def test_a_reset_connection_of_a_grpc_server_is_recognised() -> None:
    """A reset drops the first frame of the server, if it was not read yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = to_endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", Access())

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"\0\0\0\x04\0\0\0\0\0")
                connection.recv(1)

        thread = threading.Thread(target=greet)
        thread.start()
        text = str(no_answer(endpoint, ConnectionResetError()))
        thread.join()
    assert "is a gRPC port: give the URL of the HTTP port" in text
