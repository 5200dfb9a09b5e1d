"""Large bodies that are refused: their memory is free when the answer is sent, not when a garbage
collector comes by.
"""

import ctypes
import gc
import gzip
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.described import OPTIONS, SOURCE
from tests.e2e.harness import Calls, config, eventually, memory, serving, write_servable
from tests.llm import chatty

MIB = 1 << 20
SIZE, TIMES = 8 * MIB, 10
MOST_GROWTH = 4 * SIZE
JSON = {"Content-Type": "application/json"}
GZIP = {**JSON, "Content-Encoding": "gzip"}
TENSOR = {"name": "x", "shape": [1, 2], "datatype": "FP32"}
BROKEN = """
@method("y")
def fail(x):
    raise ValueError("never")
"""
INFER = "/v2/models/toy.predict/infer"
FAILING = "/v2/models/broken.fail/infer"


def spaces(size: int = SIZE) -> bytes:
    return b" " * size


def long() -> bytes:
    tensor = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a" * SIZE]}
    return json.dumps({"inputs": [tensor]}).encode()


def padded(body: Any, size: int = SIZE) -> bytes:
    return json.dumps(body).encode() + spaces(size)


BODIES: dict[str, tuple[str, dict[str, str], Callable[[], bytes]]] = {
    "a bomb over the limit": (INFER, GZIP, lambda: gzip.compress(spaces(32 * MIB))),
    "a bomb of spaces": (INFER, GZIP, lambda: gzip.compress(spaces())),
    "a broken bomb": (INFER, GZIP, lambda: gzip.compress(spaces()) + b"more"),
    "v2, no JSON": (INFER, JSON, lambda: b"[" + spaces()),
    "v2, a wrong tensor": (INFER, JSON, lambda: padded({"inputs": [{**TENSOR, "data": ["a"]}]})),
    "v2, raw": (INFER, {**JSON, "Inference-Header-Content-Length": "0"}, spaces),
    "v2, no model": ("/v2/models/nobody/infer", JSON, spaces),
    "v2, generate": ("/v2/models/chatty/generate", JSON, lambda: b"{" + spaces()),
    "classic, no JSON": ("/model/toy:predict", JSON, lambda: b"{" + spaces()),
    "classic, a wrong instance": (
        "/model/toy:predict",
        JSON,
        lambda: padded({"instances": [{"x": "a"}]}),
    ),
    "classic, no method": ("/model/toy:nothing", JSON, spaces),
    "v2, a stage that fails": (FAILING, JSON, long),
    "v2, a stage that fails, of a bomb": (FAILING, GZIP, lambda: gzip.compress(long())),
    "classic, a stage that fails": (
        "/model/broken:fail",
        JSON,
        lambda: json.dumps({"instances": [{"x": "a" * SIZE}]}).encode(),
    ),
    "openai, a prompt that is too long": (
        "/v1/completions",
        JSON,
        lambda: json.dumps({"prompt": "a " * MIB, "max_tokens": 1}).encode(),
    ),
    "no route": ("/nowhere", JSON, spaces),
    "openai": ("/v1/completions", JSON, lambda: b"{" + spaces()),
    "openai, a wrong field": (
        "/v1/completions",
        JSON,
        lambda: padded({"prompt": "a", "max_tokens": -1}, 4 * MIB),
    ),
    "tgi": ("/generate", JSON, lambda: b"{" + spaces()),
    "ollama": ("/api/generate", JSON, lambda: b"{" + spaces()),
    "anthropic": ("/v1/messages", JSON, lambda: b"{" + spaces()),
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    place = tmp_path_factory.mktemp("refused")
    chatty.build(place, context=64)
    write_servable(place, "toy", SOURCE)
    write_servable(place, "broken", BROKEN)
    models = [config(place, name) for name in ("toy", "broken")]
    chat = config(place, "chatty", llm_options=OPTIONS)
    with serving(place, *models, chat, limit=16, use_status_codes=True) as found:
        yield found


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return memory(os.getpid())


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", BODIES)
def test_a_refused_body_leaves_nothing_behind(calls: Calls, name: str) -> None:
    path, headers, make_body = BODIES[name]
    body = make_body()

    def ask() -> Any:
        status, answer = calls.http_call("POST", path, body, headers)
        assert 400 <= status <= 500, answer

    ask()
    before = resident()
    for _ in range(TIMES):
        ask()
    eventually(lambda: resident() - before < MOST_GROWTH, 20, "memory that is given back")
