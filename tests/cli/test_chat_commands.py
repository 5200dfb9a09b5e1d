"""What can be typed in `mindspore-serving chat`, with a server whose two models are scripted.

An answer says which model was asked and how many messages it got, behind a thought.
"""

import json
import re
import stat
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, call, environment, run
from tests.cli.terminal import Terminal
from tests.e2e.harness import ROOT
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e
CHAT = [*SERVING, "chat"]
DIM, PLAIN = "\033[2m", "\033[0m"


class Scripted(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        small, large = {"id": "small", "suggested_max_tokens": 7}, {"id": "large"}
        self._answer([{"data": [small, {**large, "max_model_len": 4000}]}], "%s")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        said = f"{body['model']} got {len(body['messages'])}\033[31m\n"
        deltas = [{"reasoning_content": "hm"}, {"content": said}]
        events = [{"choices": [{"delta": one}]} for one in deltas]
        reason = "length" if body["messages"][-1]["content"].startswith("much") else "stop"
        events += [{"choices": [{"delta": {}, "finish_reason": reason}]}]
        if body["messages"][-1]["content"] == "much too much":
            events += [{"choices": [], "usage": {"completion_tokens": 3}}]
        self._answer(events, "data: %s\n")

    def _answer(self, events: list[dict], form: str) -> None:
        self.send_response(200)
        self.end_headers()
        for event in events:
            self.wfile.write((form % json.dumps(event)).encode())

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    bodies: list[dict]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sent(self) -> list[str]:
        """The texts of the last request."""
        return [message["content"] for message in self.bodies[-1]["messages"]]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Scripted) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def server(running: Server) -> Server:
    running.bodies = []
    return running


def test_the_model_is_changed_and_the_conversation_kept(server: Server, tmp_path: Path) -> None:
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("small at", "> ")
        terminal.type("/model")
        terminal.shows("* small", "  large", "> ")
        terminal.type("one")
        terminal.shows("small got 1", "> ")
        terminal.type("/model large")
        terminal.shows("large answers now", "> ")
        terminal.type("two")
        terminal.shows("large got 3", "> ")
        terminal.type("/model other")
        terminal.shows("no model 'other'", "there is: small, large", "> ")
        terminal.leave()


@pytest.mark.parametrize("word", ["quit", "exit", "/quit", "/exit", "/bye"])
def test_a_word_that_other_programs_leave_by_ends_a_chat(
    server: Server, tmp_path: Path, word: str
) -> None:
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("exit leaves", "> ")
        terminal.type(word)
        assert terminal.process.wait(PATIENCE) == 0
    assert server.bodies == []


def test_images_and_calls_of_a_loaded_conversation_are_sent_again(
    server: Server, tmp_path: Path
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    tool_call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "look"}]},
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    ]
    (tmp_path / "page.json").write_text(json.dumps({"messages": messages}))
    call(["chat", server.url, "--load", "page.json", "--prompt", "and now?"], tmp_path)
    assert server.bodies[-1]["messages"] == [*messages, {"role": "user", "content": "and now?"}]


@pytest.mark.parametrize(
    "messages",
    ["[]", "[3]", '[{"role": "usr", "content": "a"}]', '[{"role": "user", "content": [3]}]'],
)
def test_a_file_with_other_messages_is_no_conversation(
    server: Server, tmp_path: Path, messages: str
) -> None:
    (tmp_path / "notes.json").write_text(f'{{"messages": {messages}}}')
    done = call(["chat", server.url, "--load", "notes.json", "--prompt", "a"], tmp_path)
    assert "notes.json is not a conversation: expected" in done.stderr
    assert server.bodies == []


def test_an_answer_has_the_length_that_the_server_suggests(server: Server, tmp_path: Path) -> None:
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("much")
        terminal.shows("cut off at 7 tokens: ask it to continue", "> ")
        terminal.type("/model large")
        terminal.shows("large answers now", "> ")
        terminal.type("much")
        terminal.shows("cut off at 2000 tokens", "> ")
        terminal.type("much too much")
        terminal.shows("the model's context is full: /reset", "> ")
        terminal.leave()
    assert [body["max_tokens"] for body in server.bodies] == [7, 2000, 2000]


def test_an_answer_on_a_pipe_tells_of_a_limit_that_nobody_set(
    server: Server, tmp_path: Path
) -> None:
    done = call(["chat", server.url, "--prompt", "much"], tmp_path)
    assert "cut off at 7 tokens" in done.stderr
    assert "cut off" not in done.stdout
    done = call(["chat", server.url, "--prompt", "much", "--max-tokens", "9"], tmp_path)
    assert (done.stderr, server.bodies[-1]["max_tokens"]) == ("", 9)


def test_a_conversation_is_saved_for_its_owner_and_gone_on_with(
    server: Server, tmp_path: Path
) -> None:
    with Terminal([*CHAT, server.url, "--system", "Be short."], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("one")
        terminal.shows("small got 2", "> ")
        terminal.type("/save talk.json")
        terminal.shows("saved in talk.json", "> ")
        terminal.type("two")
        terminal.shows("small got 4", "> ")
        terminal.type("/save")
        terminal.shows("saved in talk.json", "> ")
    saved = tmp_path / "talk.json"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    body = json.loads(saved.read_text())
    assert body["model"] == "small"
    assert [one["role"] for one in body["messages"]] == ["system", *["user", "assistant"] * 2]
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("/load talk.json")
        terminal.shows("small got 4", "loaded 4 messages", "> ")
        terminal.type("three")
        terminal.shows("small got 6", "> ")
    assert server.sent()[0] == "Be short."
    done = call(["chat", server.url, "--load", "talk.json", "--prompt", "four"], tmp_path)
    assert "small got 6" in done.stdout


def test_no_file_of_something_else_is_written_over_or_read(server: Server, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"messages": [{"role": "user"}]}')
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("/save notes.json")
        terminal.shows("notes.json already exists: choose another name", "> ")
        terminal.type("/load notes.json")
        terminal.shows("notes.json is not a conversation: expected", "> ")
        terminal.type("/load nowhere")
        terminal.shows("cannot read nowhere", "> ")
        terminal.type("/save")
        terminal.shows("/save needs the name of a file", "> ")
        terminal.type("/resett")
        terminal.shows("there is no command /resett; did you mean '/reset'?", "/load FILE", "> ")
        terminal.leave()
    assert (tmp_path / "notes.json").read_text() == '{"messages": [{"role": "user"}]}'
    assert server.bodies == []


def test_the_documentation_has_every_command(server: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs/cli.md").read_text().partition("## chat")[2].partition("<!--")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", page, re.MULTILINE)
    table = [f"{name.strip('`'):<16}{text}" for name, text in rows]
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("/help")
        shown = terminal.shows(*table, "> ")
        terminal.leave()
    assert len(table) == shown.count("\r\n") - 1


def test_a_message_has_several_lines_between_quotes(server: Server, tmp_path: Path) -> None:
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type('"""one')
        terminal.shows("... ")
        terminal.type('two"""')
        terminal.shows("small got 1", "> ")
        terminal.type('"""given up')
        terminal.shows("... ")
        terminal.interrupt_input()
        terminal.shows("Ctrl-D leaves", "> ")
        terminal.type('"""three"""')
        terminal.shows("small got 3", "> ")
        terminal.leave()
    assert server.sent()[0] == "one\ntwo"
    assert server.sent()[2] == "three"


def test_pasted_lines_are_a_single_message(server: Server, tmp_path: Path) -> None:
    with Terminal([*CHAT, server.url], tmp_path, TERM="xterm") as terminal:
        terminal.shows("\033[?2004h")  # readline asks the terminal to mark what is pasted
        terminal.press("\033[200~one\rtwo\033[201~\r")
        terminal.shows("small got 1", "> ")
        terminal.leave()
    assert server.sent() == ["one\ntwo"]


def test_lines_are_recalled_from_a_history_that_its_owner_alone_can_read(
    server: Server, tmp_path: Path
) -> None:
    up, history = "\033[A", tmp_path / "mindspore-serving" / "chat_history"
    with Terminal([*CHAT, server.url], tmp_path, TERM="xterm") as terminal:
        terminal.shows("> ")
        terminal.type("first")
        terminal.shows("small got 1", "> ")
        terminal.press(f"{up}!\n")
        terminal.shows("small got 3", "> ")
        terminal.leave()
    assert server.sent()[2] == "first!"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with Terminal([*CHAT, server.url], tmp_path, TERM="xterm") as terminal:
        terminal.shows("> ")
        terminal.press(f"{up}{up}?\n")
        terminal.shows("small got 1", "> ")
        terminal.leave()
    assert server.sent() == ["first?"]


def test_a_history_has_a_thousand_lines_at_most_and_can_be_off(
    server: Server, tmp_path: Path
) -> None:
    history = tmp_path / "mindspore-serving" / "chat_history"
    history.parent.mkdir()
    history.write_text("old\n" * 1500)
    with Terminal([*CHAT, server.url, "--no-history"], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("/reset")
        terminal.shows("new conversation", "> ")
        terminal.leave()
    assert history.read_text() == "old\n" * 1500
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("/reset")
        terminal.shows("new conversation", "> ")
        terminal.leave()
    assert history.read_text().split() == ["old"] * 999 + ["/reset"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_history_that_cannot_be_kept_is_a_note(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mindspore-serving").write_text("a file")
    with Terminal([*CHAT, server.url], tmp_path) as terminal:
        terminal.shows("no history is kept", "> ")
        terminal.type("one")
        terminal.shows("small got 1", "> ")
        terminal.leave()


@pytest.mark.parametrize(
    ("variables", "has_colours"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({}, False)],
)
def test_colours_are_those_of_a_terminal_that_wants_them(
    server: Server, tmp_path: Path, variables: dict[str, str], has_colours: bool
) -> None:
    with Terminal([*CHAT, server.url], tmp_path, **variables) as terminal:
        terminal.shows("> ")
        terminal.type("one")
        shown = terminal.shows("(thinking)", "hm", "small got 1", "first word after", "> ")
        terminal.leave()
    assert (f"{DIM}(thinking)" in shown, f"hm{PLAIN}" in shown) == (has_colours, has_colours)
    assert ("\033[0m" in shown) == has_colours
    assert "\033[31m" not in shown  # what the model wrote


def test_a_pipe_gets_the_answer_unchanged_without_reasoning(server: Server, tmp_path: Path) -> None:
    done = run(["env", "TERM=xterm", *CHAT, server.url, "--prompt", "one"], tmp_path)
    assert (done.stdout, done.stderr) == ("small got 1\033[31m\n\n", "")


def test_a_reader_that_ends_early_is_no_error(server: Server, tmp_path: Path) -> None:
    line = " ".join([*CHAT, server.url, "--prompt", "one", "|", "true"])
    done = subprocess.run(
        ["bash", "-c", f"trap '' PIPE; {line}; echo ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
