"""Fairness between keys: a key with many requests does not delay a key with one, by their order."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Calls, config, serving, workers, write_servable
from tests.llm import chatty
from tests.waiting import PATIENCE, eventually

SOURCE = """
@method("y")
def note(path, name):
    while not os.path.exists(str(path)):
        time.sleep(0.005)
    with open(f"{path}.names", "a") as file:
        file.write(str(name))
    return 1
"""
NUM_HEAVY = 24
KEYS = ["key-of-the-heavy-one", "key-of-the-light-one", "key-of-the-operator"]
HEAVY, LIGHT, OPERATOR = ({"authorization": f"Bearer {key}"} for key in KEYS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("fair")
    chatty.build(directory)
    write_servable(directory, "toy", SOURCE)
    return directory


@pytest.fixture(scope="module", params=[1, 2], ids=["one_process", "front_ends"])
def calls(place: Path, request: Any) -> Iterator[Calls]:
    options = {"dtype": "f32", "kv_cache_memory": 8 << 20, "max_num_seqs": 1}
    servables = (config(place, "chatty", llm_options=options), config(place, "toy"))
    with serving(place, *servables, api_keys=KEYS, front_ends=request.param) as served:
        yield served


def num_in_flight(calls: Calls) -> int:
    page = calls.http_call("GET", "/metrics", headers=OPERATOR)[1].decode()
    return int(float(page.partition("\nserving_requests_in_flight ")[2].partition("\n")[0]))


def run(
    calls: Calls, send: Callable[[str, dict[str, str]], None], free: Callable[[], None]
) -> None:
    """Send many requests of the heavy key, then one of the light key, then let them run."""
    with ThreadPoolExecutor(NUM_HEAVY + 1) as pool:
        sent = [pool.submit(send, "h", HEAVY) for _ in range(NUM_HEAVY)]
        eventually(lambda: num_in_flight(calls) == NUM_HEAVY)
        sent.append(pool.submit(send, "l", LIGHT))
        eventually(lambda: num_in_flight(calls) == NUM_HEAVY + 1)
        free()
        for result in sent:
            result.result(PATIENCE)


def test_batched_requests_of_keys_take_turns(calls, tmp_path):
    path = tmp_path / "open"

    def send(name: str, headers: dict[str, str]) -> None:
        answer = calls.post("toy", "note", {"path": str(path), "name": name}, headers)
        assert answer["instances"] == [{"y": 1}]

    run(calls, send, path.touch)
    order = (tmp_path / "open.names").read_text()
    assert order.index("l") < 10, order


def test_streams_of_keys_take_turns(calls):
    order, lock = [], threading.Lock()

    def send(name: str, headers: dict[str, str]) -> None:
        body = {"model": "chatty", "prompt": "def", "max_tokens": 150, "ignore_eos": True}
        body["stream"] = True
        status, text = calls.http_call("POST", "/v1/completions", json.dumps(body), headers)
        with lock:
            order.append(name)
        assert status == 200, text

    pids = workers(os.getpid())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        run(calls, send, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids])
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert order.index("l") < 10, order
