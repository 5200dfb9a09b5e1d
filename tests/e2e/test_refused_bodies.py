"""Large bodies that are refused: their memory is free when the answer is sent, not when a garbage
collector comes by.
"""

import ctypes
import gc
import gzip
import json
import os
from collections.abc import Iterator
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
SPACES = b" " * SIZE
BROKEN = """
@method("y")
def fail(x):
    raise ValueError("never")
"""
TEXT = "a" * SIZE
LONG = json.dumps(
    {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}
).encode()
BODIES: dict[str, tuple[str, dict[str, str], bytes]] = {
    "a bomb over the limit": ("/v2/models/toy.predict/infer", GZIP, gzip.compress(b" " * 32 * MIB)),
    "a bomb of spaces": ("/v2/models/toy.predict/infer", GZIP, gzip.compress(SPACES)),
    "a broken bomb": ("/v2/models/toy.predict/infer", GZIP, gzip.compress(SPACES) + b"more"),
    "v2, no JSON": ("/v2/models/toy.predict/infer", JSON, b"[" + SPACES),
    "v2, a wrong tensor": (
        "/v2/models/toy.predict/infer",
        JSON,
        json.dumps({"inputs": [{**TENSOR, "data": ["a"]}]}).encode() + SPACES,
    ),
    "v2, raw": (
        "/v2/models/toy.predict/infer",
        {**JSON, "Inference-Header-Content-Length": "0"},
        SPACES,
    ),
    "v2, no model": ("/v2/models/nobody/infer", JSON, SPACES),
    "v2, generate": ("/v2/models/chatty/generate", JSON, b"{" + SPACES),
    "classic, no JSON": ("/model/toy:predict", JSON, b"{" + SPACES),
    "classic, a wrong instance": (
        "/model/toy:predict",
        JSON,
        json.dumps({"instances": [{"x": "a"}]}).encode() + SPACES,
    ),
    "classic, no method": ("/model/toy:nothing", JSON, SPACES),
    "v2, a stage that fails": (
        "/v2/models/broken.fail/infer",
        JSON,
        LONG,
    ),
    "v2, a stage that fails, of a bomb": (
        "/v2/models/broken.fail/infer",
        GZIP,
        gzip.compress(LONG),
    ),
    "classic, a stage that fails": (
        "/model/broken:fail",
        JSON,
        json.dumps({"instances": [{"x": TEXT}]}).encode(),
    ),
    "openai, a prompt that is too long": (
        "/v1/completions",
        JSON,
        json.dumps({"prompt": "a " * MIB, "max_tokens": 1}).encode(),
    ),
    "no route": ("/nowhere", JSON, SPACES),
    "openai": ("/v1/completions", JSON, b"{" + SPACES),
    "openai, a wrong field": (
        "/v1/completions",
        JSON,
        json.dumps({"prompt": "a", "max_tokens": -1}).encode() + b" " * 4 * MIB,
    ),
    "tgi": ("/generate", JSON, b"{" + SPACES),
    "ollama": ("/api/generate", JSON, b"{" + SPACES),
    "anthropic": ("/v1/messages", JSON, b"{" + SPACES),
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
    path, headers, body = BODIES[name]

    def ask() -> Any:
        status, answer = calls.http_call("POST", path, body, headers)
        assert 400 <= status <= 500, answer

    ask()
    before = resident()
    for _ in range(TIMES):
        ask()
    eventually(lambda: resident() - before < MOST_GROWTH, 20, "memory that is given back")
