"""Many short requests at once over every protocol, most well, some wrong, some abandoned: the
server is as it was before when they are over.
"""

import json
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.client import messages
from tests.e2e.harness import (
    Calls,
    check_growth,
    config,
    eventually,
    is_idle,
    memory,
    open_files,
    serving,
    workers,
    write_servable,
    zombies,
)
from tests.llm import chatty
from tests.waiting import PATIENCE

MIB = 1 << 20
CLIENTS = 16
WARM_UP, SHORT, LONG = 2000, 2000, 40_000  # requests; kernels are made for many shapes at first
MOST_GROWTH = 24 * MIB  # of master or worker behind the warm-up
JSON = {"Content-Type": "application/json"}
POUR = """
@method("text")
def pour(path):
    try:
        while True:
            yield "x" * 65536
    finally:
        open(str(path), "w").close()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("soak")
    chatty.build(directory)
    write_servable(directory, "pouring", POUR)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    options = {"dtype": "f32", "kv_cache_memory": 4 * MIB, "max_num_seqs": 16}
    model = config(
        place, "chatty", llm_options={**options, "max_num_waiting": 64, "embeddings": True}
    )
    with serving(place, model, config(place, "pouring")) as found:
        yield found


def asked(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body: of all protocols, of all kinds."""
    prompt = " ".join(dice.choices(("sea", "why", "Hello", "0", "é"), k=dice.randint(1, 12)))
    count = dice.randint(1, 6)
    is_stream = dice.random() < 0.5
    messages = [{"role": "user", "content": prompt}]
    sampling = {"max_tokens": count, "stream": is_stream}
    tgi = {"inputs": prompt, "parameters": {"max_new_tokens": count}}
    instance = {"prompt": prompt, "max_tokens": count}
    return dice.choice(
        [
            ("/v1/completions", {"prompt": prompt, **sampling}),
            ("/v1/completions", {"prompt": [prompt, "b"], "n": 2, "logprobs": 2, **sampling}),
            ("/v1/completions", {"prompt": prompt, "n": 3, "temperature": 0, **sampling}),
            ("/v1/completions", {"prompt": prompt, "structured_outputs": {"choice": ["a", "b"]}}),
            ("/v1/completions", {"prompt": prompt, "max_tokens": -1}),
            ("/v1/completions", {"prompt": "x" * 9000, **sampling}),
            ("/v1/chat/completions", {"messages": messages, "stop": ["e"], **sampling}),
            ("/v1/chat/completions", {"messages": [{"role": 1}]}),
            ("/v1/embeddings", {"input": [prompt] * dice.randint(1, 9)}),
            ("/tokenize", {"prompt": prompt}),
            ("/generate", tgi),
            ("/generate_stream", tgi),
            ("/generate", {"inputs": "", "parameters": {}}),
            ("/models/chatty/generate_stream", tgi),
            ("/models/chatty/generate", tgi),
            ("/model/chatty:generate", {"instances": [instance] * dice.randint(1, 3)}),
            ("/model/chatty:generate_stream", {"instances": [instance]}),
            ("/model/chatty:generate_stream", {"instances": [{"prompt": ""}]}),
        ]
    )


def one(calls: Calls, dice: random.Random) -> str:
    """Make a request; what became of it."""
    path, body = asked(dice)
    sent = json.dumps(body).encode()
    kind = dice.random()
    if kind < 0.2:  # leave somewhere
        head = (
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            % path.encode()
        )
        with socket.create_connection(("127.0.0.1", calls.http), timeout=PATIENCE) as stream:
            stream.sendall(head + b"Content-Length: %d\r\n\r\n" % len(sent))
            stream.sendall(sent[: dice.choice((len(sent), len(sent), len(sent) // 2))])
            if dice.random() < 0.5:
                stream.settimeout(0.02)
                with suppress(TimeoutError):
                    stream.recv(dice.choice((1, 400)))
        return "left"
    headers = dict(JSON)
    if kind < 0.3:
        headers["X-Request-Timeout"] = str(dice.choice((0.0005, 0.005, 0.02)))
    status, answer = calls.http_call("POST", path, sent, headers)
    assert status in (200, 400, 404, 422, 424, 429, 503, 504), (status, path, body, answer)
    if status in (424, 503):
        assert kind < 0.3, (status, answer)
    if status == 400 and "instances" not in body and path != "/v1/embeddings":
        assert b'"message"' in answer
    return str(status)


def pound(calls: Calls, count: int, seed: int) -> Counter[str]:
    """Make `count` requests, CLIENTS at once, some of them over gRPC."""
    client = calls.client("chatty", "generate")

    def work(place: int) -> Counter[str]:
        dice, found = random.Random(seed * 1000 + place), Counter()
        for _ in range(count // CLIENTS):
            if dice.random() < 0.9:
                found[one(calls, dice)] += 1
                continue
            pieces = client.infer_stream({"prompt": "Hello", "max_tokens": 6})
            next(pieces)
            if dice.random() < 0.5:
                list(pieces)
            pieces.close()
            found["grpc"] += 1
        return found

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(work, range(CLIENTS)), Counter())


def soak(calls: Calls, count: int) -> None:
    pids = [os.getpid(), *sorted(workers(os.getpid()))]
    pound(calls, WARM_UP, seed=1)
    eventually(lambda: is_idle(calls, "chatty"))
    before = [open_files(pid) for pid in pids]

    def run() -> None:
        found = pound(calls, count, seed=2)
        assert found["200"] > count * 0.4, found
        assert found["left"] > count * 0.1, found
        assert found["504"] > 0, found
        eventually(lambda: is_idle(calls, "chatty"), what="everything idle")

    check_growth(pids, run, MOST_GROWTH)
    assert [os.getpid(), *sorted(workers(os.getpid()))] == pids
    assert not zombies(os.getpid())
    for pid, files in zip(pids, before, strict=True):
        eventually(lambda pid=pid, files=files: open_files(pid) <= files, what="closed files")


@pytest.mark.long
@pytest.mark.slow
def test_thousands_of_requests_leave_nothing_behind(calls):
    soak(calls, SHORT)


@pytest.mark.slow
@pytest.mark.skipif("SOAK" not in os.environ, reason="takes minutes; SOAK=1 runs it")
def test_tens_of_thousands_of_requests_leave_nothing_behind(calls):
    soak(calls, LONG)


# --- clients that do not read -----------------------------------------------------------------


def test_a_client_that_does_not_read_is_cut_off_and_holds_up_nobody(calls, tmp_path):
    """Its generator makes gigabytes a second: the master keeps some MiB of it, then ends it."""
    before = memory(os.getpid())
    closed = [tmp_path / name for name in "abc"]
    streams = [unread(calls, path) for path in closed]
    for path in closed:
        body = json.dumps({"prompt": "Hello", "max_tokens": 4})
        assert calls.http_call("POST", "/v1/completions", body)[0] == 200
        eventually(path.exists, what="the generator is closed")
    assert memory(os.getpid()) - before < 96 * MIB
    answer = b""
    for stream in streams:
        stream.settimeout(PATIENCE)
        answer = b""
        while b"error_msg" not in answer:
            received = stream.recv(MIB)
            assert received, "ended without a word"
            answer = answer[-200:] + received
        assert b"its client left over 8 MiB unread" in answer
        stream.close()


def test_a_grpc_client_that_does_not_read_is_cut_off_too(calls, tmp_path):
    before = memory(os.getpid())
    client = calls.client("pouring", "pour")
    request = messages.to_request("pouring", "pour", 0, {"path": str(tmp_path / "a")})
    call = client.stub.PredictStream(request, timeout=PATIENCE)
    eventually((tmp_path / "a").exists, what="the generator is closed")
    assert memory(os.getpid()) - before < 96 * MIB
    last = list(call)[-1]
    assert b"left over 8 MiB unread" in last.error_msg[0].error_msg


def unread(calls: Calls, path: Path) -> socket.socket:
    """A connection on which an endless stream comes, of which nothing is read."""
    body = json.dumps({"instances": [{"path": str(path)}]}).encode()
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    stream.connect(("127.0.0.1", calls.http))
    head = (
        b"POST /model/pouring:pour_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    )
    stream.sendall(head % len(body) + body)
    return stream
