"""Checkpoints of a language model as versions of one servable, in directories by number."""

import http.client
import json
import os
from contextlib import closing
from pathlib import Path

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from mindspore_serving.core.traffic import choose_by_key
from tests.cli.commands import SERVING, Command
from tests.e2e.harness import Calls
from tests.e2e.versions import USERS
from tests.llm import chatty, checkpoints
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

PROMPT = (7, 21, 140)
WEIGHTS = {1: 50.0, 2: 50.0}
CONFIG = """
servables:
  - path: models/chat
    versions: all
    traffic: {{1: 50, 2: 50}}
    sticky: header:x-user
    llm_option: {{dtype: f32, kv_cache_memory: 8388608}}
http_port: {port}
no_grpc: true
poll: 0.1
allow_loading: true
"""


def write_version(root: Path, number: int) -> str:
    """Write a checkpoint whose answers differ from the other versions'; return its greedy text."""
    made = chatty.build(root, f".{number}")
    tensors = load_file(made / "model.safetensors")
    head = tensors["lm_head.weight"]
    shift = number - 1  # columns, so that other tokens are the likeliest
    save_file(tensors | {"lm_head.weight": head.roll(shift, 1)}, made / "model.safetensors")
    tokens = checkpoints.greedy(made, PROMPT, 6)
    os.rename(made, root / str(number))  # complete at once, for a server that looks
    return Tokenizer.from_file(str(root / str(number) / "tokenizer.json")).decode(tokens)


def complete(port: int, user: str = "", *, stream: bool = False) -> tuple[str | None, str]:
    """Return the version and the text of a completion of PROMPT."""
    body = {"model": "chat", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "stream": stream}
    headers = {"content-type": "application/json"} | ({"x-user": user} if user else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with closing(connection):
        connection.request(
            "POST", "/v1/completions", json.dumps({**body, "ignore_eos": True}), headers
        )
        reply = connection.getresponse()
        text = reply.read().decode()
        assert reply.status == 200, text
    parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    texts = [part["choices"][0]["text"] for part in parts or [json.loads(text)] if part["choices"]]
    return reply.getheader("x-model-version"), "".join(texts)


def test_directories_of_a_language_model_are_versions_that_share_requests(tmp_path: Path) -> None:
    root = tmp_path / "models" / "chat"
    root.mkdir(parents=True)
    texts = {number: write_version(root, number) for number in (1, 2)}
    assert texts[1] != texts[2]
    users = {choose_by_key(WEIGHTS, "chat", user): user for user in USERS}
    port = free_port()
    (tmp_path / "server.yaml").write_text(CONFIG.format(port=port))
    with Command([*SERVING, "serve", "--config", "server.yaml"], tmp_path) as command:
        command.says("Ctrl-C stops")
        assert "chat, version 1, 1 worker" in command.text
        for number, user in users.items():
            for stream in (False, True):
                assert complete(port, user, stream=stream) == (str(number), texts[number])
        newest = write_version(root, 3)
        calls = Calls("", port)
        path = "/v2/models/chat/versions/3/generate"
        body = {"text_input": "Hi", "parameters": {"max_tokens": 1}}
        eventually(lambda: calls.http_call("POST", path, json.dumps(body))[0] == 200)
        load = {"parameters": {"traffic": {"string_value": "3=1"}}}
        load_path = "/v2/repository/models/chat/load"
        status, text = calls.http_call(
            "POST", load_path, json.dumps({"parameters": {"config": json.dumps(load)}})
        )
        assert status == 200, text
        assert complete(port, users[1]) == ("3", newest)
