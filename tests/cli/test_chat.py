"""`mindspore-serving chat` with a server that has a real, if senseless, model."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, call, run
from tests.cli.talking import MODEL, Talking, serving, talking
from tests.cli.terminal import Terminal
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
CHAT = [*SERVING, "chat"]
GREEDY = [*CHAT, "--temperature", "0"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    with talking(tmp_path_factory.mktemp("talking")) as running:
        yield running


def answer(server: Talking, *messages: tuple[str, str], max_tokens: int) -> str:
    """What the server says at temperature 0, asked without the command."""
    body = {
        "model": MODEL,
        "messages": [{"role": role, "content": text} for role, text in messages],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    reply = json.loads(connection.getresponse().read())
    connection.close()
    return str(reply["choices"][0]["message"]["content"])


def test_the_start_prints_how_much_memory_the_cache_may_take(server) -> None:
    limit = "KV cache up to 0.064 GB (kv_cache_memory; change: --llm-option kv_cache_memory=1e8)"
    assert f"  {limit}\n" in server.command.text


def test_a_prompt_prints_only_its_answer(server, tmp_path: Path) -> None:
    words = [*CHAT, server.url, "--prompt", "hello", "--temperature", "0", "--max-tokens", "20"]
    done = run(words, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    expected = answer(server, ("user", "hello"), max_tokens=20)
    assert len(expected) > 10
    assert done.stdout == expected + "\n"


def test_the_prompt_can_be_piped_in_and_a_system_prompt_given(server, tmp_path: Path) -> None:
    words = [*CHAT, f"127.0.0.1:{server.port}/v1", "--system", "Be short.", "--model", MODEL]
    done = run([*words, "--temperature", "0", "--max-tokens", "9"], tmp_path, "two\nlines\n")
    expected = answer(server, ("system", "Be short."), ("user", "two\nlines"), max_tokens=9)
    assert done.stdout == expected + "\n"


def test_a_conversation_is_kept_until_reset(server, tmp_path: Path) -> None:
    first = answer(server, ("user", "one"), max_tokens=6)
    said = (("user", "one"), ("assistant", first), ("user", "two"))
    second = answer(server, *said, max_tokens=6)
    alone = answer(server, ("user", "two"), max_tokens=6)
    assert second != alone
    with Terminal([*GREEDY, "--max-tokens", "6", server.url], tmp_path) as terminal:
        terminal.shows(f"{MODEL} at {server.url}", "> ")
        terminal.type("one")
        terminal.shows(shown(first), "(6 tokens, first word after ", "cut off", "> ")
        terminal.type("two")
        terminal.shows(shown(second), "(6 tokens", "> ")
        terminal.type("/reset")
        terminal.shows("new conversation", "> ")
        terminal.type("two")
        terminal.shows(shown(alone), "(6 tokens", "> ")
        terminal.type("/quit")
        assert terminal.process.wait(PATIENCE) == 0


def shown(text: str) -> str:
    """As a terminal gets it."""
    kept = "".join(one for one in text if one in "\n\t" or ord(one) >= 160 or 31 < ord(one) < 127)
    return kept.replace("\n", "\r\n")


def test_a_system_prompt_begins_again(server, tmp_path: Path) -> None:
    expected = answer(server, ("system", "Be kind."), ("user", "one"), max_tokens=6)
    with Terminal([*GREEDY, "--max-tokens", "6", server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("/system Be kind.")
        terminal.shows("with this system prompt", "> ")
        terminal.type("one")
        terminal.shows(shown(expected), "(6 tokens", "> ")


def test_an_interrupt_stops_the_answer_and_not_the_command(server, tmp_path: Path) -> None:
    with Terminal([*GREEDY, server.url], tmp_path) as terminal:
        terminal.shows("> ")
        terminal.type("hello")
        eventually(lambda: running(server) == 1, what="the server answers")
        terminal.interrupt()
        terminal.shows("(stopped)", "> ")
        eventually(lambda: running(server) == 0, what="the server has stopped too")
        terminal.type("")
        terminal.shows("> ")
        terminal.interrupt_input()
        terminal.shows("Ctrl-D leaves", "> ")
        terminal.type("/help")
        terminal.shows("/reset", "/system", "/quit", "> ")
        terminal.leave()


def running(server: Talking) -> int:
    """Sequences that the engine works on."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", "/servables")
    rows = json.loads(connection.getresponse().read())["servables"]
    connection.close()
    return int(next(row["engine"].get("num_running", 0) for row in rows if row["name"] == MODEL))


def test_an_unknown_model_is_an_error_that_names_those_there_are(server, tmp_path: Path) -> None:
    done = call(["chat", server.url, "--prompt", "a", "--model", "other"], tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"mindspore-serving: no model 'other' at {server.url}; there is: {MODEL}\n"
    )


def test_a_refusal_of_the_server_is_shown(server, tmp_path: Path) -> None:
    done = call(["chat", server.url, "--prompt", "a", "--temperature", "-1"], tmp_path)
    assert done.returncode == 1
    assert "temperature" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["http://127.0.0.1:{port}", "--prompt", "a"],
            "nothing listens at http://127.0.0.1:{port}",
        ),
        (["ftp://127.0.0.1", "--prompt", "a"], "expected a URL such as http://127.0.0.1:1500"),
        (["http://127.0.0.1:{port}"], "there is no prompt"),
    ],
)
def test_wrong_urls_and_files_are_errors_of_a_line(
    words: list[str], told: str, tmp_path: Path
) -> None:
    port = str(free_port())
    done = call(["chat", *(word.format(port=port) for word in words)], tmp_path)
    assert done.returncode == (1 if "nothing listens" in told else 2)
    assert told.format(port=port) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_without_a_language_model_is_told_so(tmp_path: Path) -> None:
    from tests.cli.conftest import write_words

    write_words(tmp_path)
    with serving(tmp_path, "words") as classic:
        done = call(["chat", classic.url, "--prompt", "a"], tmp_path)
    assert done.returncode == 1
    assert f"{classic.url} serves no language model" in done.stderr


def test_a_key_is_sent_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-of-twenty-letters"
    with talking(tmp_path, "--api-key", key) as locked:
        words = ["chat", locked.url, "--prompt", "a", "--max-tokens", "3"]
        without = call(words, tmp_path)
        assert without.returncode == 1
        assert "--api-key or MINDSPORE_SERVING_API_KEY" in without.stderr
        assert call([*words, "--api-key", key], tmp_path).returncode == 0
        monkeypatch.setenv("MINDSPORE_SERVING_API_KEY", key)
        assert call(words, tmp_path).returncode == 0
