"""Clients that leave at every stage of a generation, in every protocol: what they had is freed at
once, and the others go on.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.client import messages
from tests.e2e.harness import (
    Calls,
    config,
    engine_of,
    eventually,
    is_idle,
    row_of,
    serving,
    workers,
    write_servable,
)
from tests.llm import chatty
from tests.waiting import PATIENCE

# Preparing waits while the file "hold" is there; steps come to nothing while "pause" is and as
# many sequences run as is written in it, or one; a step raises while "break" is; an answer's piece
# raises in the stage behind the model once "fail" is.
SOURCE = """
from pathlib import Path
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.processing.processor import Processor

here = Path(__file__).parent
llm = register.declare_llm(
    "../chatty", dtype="f32", kv_cache_memory=64 << 20, max_num_seqs=4, max_num_batched_tokens=64,
    embeddings=True,
)
Processor.prepare_now, Processor.read_texts_now, Engine.step_now = (
    Processor.prepare, Processor.read_texts, Engine.step
)

def hold():
    while (here / "hold").exists():
        (here / "held").touch()
        time.sleep(0.002)

def prepare(self, request):
    hold()
    return self.prepare_now(request)

def read_texts(self, request):
    hold()
    return self.read_texts_now(request)

def max_running():
    try:
        return int((here / "pause").read_text() or 1)
    except FileNotFoundError:
        return float("inf")

def step(self):
    if (here / "break").exists():
        (here / "break").unlink()
        raise MemoryError("injected")
    if self.stats().num_running >= max_running():
        self.started = []
        time.sleep(0.002)
        return []
    return self.step_now()

Processor.prepare, Processor.read_texts, Engine.step = prepare, read_texts, step

def check(text):
    if (here / "fail").exists():
        raise ValueError("not good enough")
    return text

@register.register_method(output_names=["text"])
def generate(prompt, parameters):
    text = register.add_stage(llm, prompt, parameters, outputs_count=1)
    return register.add_stage(check, text, outputs_count=1)
"""
LONG = 60_000  # tokens: half a minute of them, far more than any test waits for
PARAMETERS = json.dumps({"max_tokens": LONG, "ignore_eos": True})
INSTANCES = {"instances": [{"prompt": "Hello", "parameters": PARAMETERS}]}
SAMPLING = {"max_tokens": LONG, "ignore_eos": True}
TGI = {"inputs": "Hello", "parameters": {"max_new_tokens": LONG}}
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/completions", {"prompt": "Hello", **SAMPLING}),
    "openai stream": ("/v1/completions", {"prompt": "Hello", "stream": True, **SAMPLING}),
    "openai n": ("/v1/completions", {"prompt": "Hello", "n": 3, "stream": True, **SAMPLING}),
    "openai prompts": ("/v1/completions", {"prompt": ["a", "b"], "stream": True, **SAMPLING}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "stream": True, **SAMPLING},
    ),
    "responses": ("/v1/responses", {"input": "Hello", "stream": True, "max_output_tokens": LONG}),
    "tgi": ("/generate", TGI),
    "tgi stream": ("/generate_stream", TGI),
    "llm-serving": ("/models/held/generate", TGI),
    "llm-serving stream": ("/models/held/generate_stream", TGI),
    "rest": ("/model/held:generate", INSTANCES),
    "rest stream": ("/model/held:generate_stream", INSTANCES),
    "grpc stream": ("", INSTANCES),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cancel")
    chatty.build(directory, context=65536)
    write_servable(directory, "held", SOURCE)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    with serving(place, config(place, "held")) as found:
        yield found


@pytest.fixture
def hold(place: Path) -> Iterator[Path]:
    """While this file is there, whatever is prepared waits; nothing is yet."""
    (place / "held" / "held").unlink(missing_ok=True)
    yield place / "held" / "hold"
    (place / "held" / "hold").unlink(missing_ok=True)


@pytest.fixture
def pause(place: Path) -> Iterator[Path]:
    """While this file is there, requests that run do not get on, once there are as many as is
    written in it, or one."""
    yield place / "held" / "pause"
    (place / "held" / "pause").unlink(missing_ok=True)


class Client:
    """One request that was sent and whose answer is not waited for."""

    def __init__(self, calls: Calls, name: str, **more: Any) -> None:
        path, body = ASKS[name]
        self._pieces: Any = None
        if not path:
            stub = calls.client("held", "generate").stub
            request = messages.to_request("held", "generate", 0, body["instances"][0])
            self._pieces = stub.PredictStream(request, timeout=PATIENCE)
            return
        sent = json.dumps({**body, **more}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.stream = calls.connect()
        self.stream.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)

    def read(self, count: int = 1) -> bytes:
        """So many pieces of a stream, or all of a shorter one; of gRPC the next."""
        if self._pieces is not None:
            return next(self._pieces).SerializeToString()
        got = b""
        while got.count(b"data:") < count and not got.endswith(b"0\r\n\r\n"):
            received = self.stream.recv(1 << 16)
            assert received, got
            got += received
        return got

    def leave(self) -> None:
        if self._pieces is None:
            self.stream.close()
        else:
            self._pieces.cancel()


def test_leaving_during_preparation_ends_the_request_at_once(calls, hold):
    held = hold.with_name("held")
    before = engine_of(calls, "held")["num_prompt_tokens"]
    for name in ASKS:
        held.unlink(missing_ok=True)
        hold.touch()
        client = Client(calls, name)
        eventually(lambda: row_of(calls, "held")["requests"]["running"] > 0, what=name)
        eventually(held.exists, what=f"{name} is prepared")
        client.leave()
        eventually(lambda: row_of(calls, "held")["requests"]["running"] == 0, what=name)
        hold.unlink()
    assert is_idle(calls, "held")
    assert engine_of(calls, "held")["num_prompt_tokens"] == before


def test_who_leaves_before_its_turn_to_be_prepared_costs_no_work(calls, hold):
    hold.touch()
    clients = [Client(calls, "openai stream") for _ in range(20)]
    eventually(lambda: row_of(calls, "held")["requests"]["running"] == 20)
    for client in clients:
        client.leave()
    eventually(lambda: row_of(calls, "held")["requests"]["running"] == 0)
    hold.unlink()
    status, _ = calls.http_call("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": 1}')
    assert status == 200
    eventually(lambda: is_idle(calls, "held"))


@pytest.mark.parametrize("name", ASKS)
def test_leaving_the_queue_frees_its_slot(calls, pause, name):
    pause.write_text("4")
    running = [Client(calls, "openai stream") for _ in range(4)]
    eventually(lambda: engine_of(calls, "held")["num_running"] == 4)
    count = 2 if name == "openai prompts" else 1
    client = Client(calls, name)
    eventually(lambda: engine_of(calls, "held")["num_waiting"] == count)
    client.leave()
    eventually(lambda: engine_of(calls, "held")["num_waiting"] == 0)
    assert engine_of(calls, "held")["num_running"] == 4
    for client in running:
        client.leave()
    eventually(lambda: is_idle(calls, "held"))


@pytest.mark.parametrize("name", [name for name in ASKS if name.startswith(("openai", "tgi"))])
def test_who_leaves_while_its_prompt_is_read_gives_its_blocks_back(calls, pause, name):
    pause.touch()
    prompt = [[3 + place % 500 for place in range(7000)]]
    text = "the sea " * 800
    more = {"inputs": text, "parameters": {"max_new_tokens": 2}}
    if name.startswith("openai"):
        more = {"prompt": prompt, "max_tokens": 2, "cache_salt": name}
    client = Client(calls, name, **more)
    eventually(lambda: engine_of(calls, "held")["num_running"] == 1)
    client.leave()
    eventually(lambda: is_idle(calls, "held"))


@pytest.mark.parametrize("name", [name for name in ASKS if "stream" in name or name == "openai n"])
def test_who_leaves_in_the_middle_gives_its_blocks_back(calls, name):
    before = engine_of(calls, "held")["num_generated_tokens"]
    client = Client(calls, name)
    client.read()  # the model may end its text early: what runs is not waited for
    client.leave()
    eventually(lambda: is_idle(calls, "held"))
    assert engine_of(calls, "held")["num_generated_tokens"] - before < LONG


def test_who_leaves_around_the_last_token_leaves_nothing(calls):
    clients = [Client(calls, "openai stream", max_tokens=count % 8 + 1) for count in range(40)]
    for count, client in enumerate(clients):
        client.read(count % 8)
        client.leave()
    eventually(lambda: is_idle(calls, "held"))


def test_embedding_many_prompts_is_dropped_with_its_client(calls, pause):
    running = Client(calls, "openai stream")
    running.read()
    pause.touch()
    body = {
        "input": [[3 + place % 500] * 400 for place in range(1000)],
        "encoding_format": "base64",
    }
    ASKS["embeddings"] = ("/v1/embeddings", body)
    try:
        client = Client(calls, "embeddings")
        eventually(lambda: row_of(calls, "held")["requests"]["running"] == 2)
        pause.unlink()
        running.read(10)  # beside the prompts
        client.leave()
        eventually(lambda: row_of(calls, "held")["requests"]["running"] == 1)
    finally:
        del ASKS["embeddings"]
    assert running.read(10)
    running.leave()
    eventually(lambda: is_idle(calls, "held"))


def test_a_stage_that_fails_behind_the_model_ends_the_generation(calls, place):
    fail = place / "held" / "fail"
    instance = {"prompt": "Hello", "parameters": PARAMETERS}
    pieces = calls.client("held", "generate").infer_stream(instance)
    assert next(pieces)
    fail.touch()
    try:
        assert "not good enough" in list(pieces)[-1]["error"]
        before = engine_of(calls, "held")["num_generated_tokens"]
        eventually(lambda: is_idle(calls, "held"))
        assert engine_of(calls, "held")["num_generated_tokens"] - before < LONG // 2
    finally:
        fail.unlink()


def test_a_step_loop_that_breaks_ends_the_worker_which_is_started_again(calls, place):
    (pid,) = workers(os.getpid())
    clients = {name: Client(calls, name) for name in ("openai stream", "tgi stream", "rest stream")}
    for client in clients.values():
        assert b" 200 OK" in client.read()
    pieces = calls.client("held", "generate").infer_stream(
        {"prompt": "Hello", "parameters": PARAMETERS}
    )
    next(pieces)
    (place / "held" / "break").touch()
    assert "worker process that had the request died" in list(pieces)[-1]["error"]
    for name, client in clients.items():
        answer = b""
        while b"died" not in answer:
            received = client.stream.recv(1 << 16)
            assert received, (name, answer[-300:])
            answer += received
        assert b"injected" not in answer
        client.leave()
    eventually(lambda: workers(os.getpid()) not in ([], [pid]), what="a new worker")

    def answers() -> bool:
        status, _ = calls.http_call("POST", "/v1/completions", b'{"prompt":"x","max_tokens":1}')
        return status == 200

    eventually(answers)
    eventually(lambda: is_idle(calls, "held"))


def test_clients_that_leave_while_the_worker_dies_leave_nothing(calls, pause):
    pause.write_text("2")
    (pid,) = workers(os.getpid())
    clients = [Client(calls, name) for name in ASKS]
    eventually(lambda: engine_of(calls, "held")["num_running"] >= 2)
    for client in clients[::2]:
        client.leave()
    os.kill(pid, signal.SIGKILL)
    for client in clients[1::2]:
        client.leave()
    eventually(lambda: workers(os.getpid()) not in ([], [pid]), what="a new worker")
    eventually(lambda: row_of(calls, "held")["num_workers"] == 1)
    eventually(lambda: is_idle(calls, "held"))
