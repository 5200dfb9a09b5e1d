"""A model behind each engine, in the interpreter of its environment.

`scripts/engine-environments DIRECTORY` makes the environments, and ENGINE_ENVIRONMENTS=DIRECTORY
names them.  Our own engine needs none.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.process.interpreter import CACHE
from mindspore_serving.server import ServableStartConfig
from tests.e2e.harness import Calls, config, serving
from tests.llm import chatty, checkpoints
from tests.llm.real_model import real_model
from tests.waiting import PATIENCE

PROMPT, COUNT = "The sea is", 16
NAME = "chatty"
ENVIRONMENTS = "ENGINE_ENVIRONMENTS"


@dataclass(frozen=True, slots=True)
class Kind:
    """How an engine is tested: `llm_options` with what it needs to be small and quick, and whether
    its model is the real one, in a GGUF file."""

    engine: str
    llm_options: dict[str, Any]
    is_real: bool = False
    engine_options: dict[str, Any] = field(default_factory=dict)


SMALL = {"dtype": "f32", "kv_cache_memory": 64 << 20, "max_num_seqs": 8}
KINDS = [
    Kind("ours", SMALL),
    Kind("vllm", SMALL, engine_options={"enforce_eager": True}),
    Kind(
        "llama.cpp",
        # Its threads wait for each other in loops, so several take long on a busy machine.
        {"kv_cache_memory": 128 << 20, "max_num_seqs": 8, "max_model_len": 512, "num_threads": 1},
        is_real=True,
        engine_options={"use_extra_bufts": False},  # which some builds cannot do on AMX
    ),
    Kind(
        "genai",
        {"dtype": "f32", "kv_cache_memory": 128 << 20, "max_num_seqs": 8, "max_model_len": 512},
        is_real=True,
    ),
]


def environment(kind: Kind) -> str:
    """The interpreter; "" is ours.  Skips the test if there is none."""
    if kind.engine == "ours":
        return ""
    python = Path(os.environ.get(ENVIRONMENTS, "/")) / kind.engine / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python}: scripts/engine-environments makes it, {ENVIRONMENTS} names it")
    return str(python)


def model(kind: Kind, directory: Path) -> Path:
    """Its model, made in `directory` unless it is there."""
    if kind.is_real:
        return real_model()
    made = directory / NAME
    if not made.exists():
        with pytest.MonkeyPatch.context() as patch:  # vLLM has no smaller heads on CPUs
            sizes = {**checkpoints.SIZES, "hidden_size": 128, "head_dim": 32}
            patch.setattr(checkpoints, "SIZES", sizes)
            chatty.build(directory, context=16_384)
    return made


def start_config(kind: Kind, directory: Path, **engine_options: Any) -> ServableStartConfig:
    """The servable NAME, with more `engine_options`."""
    path, options = model(kind, directory), dict(kind.llm_options)
    if kind.engine != "ours":
        own = {**kind.engine_options, **engine_options}
        options |= {"engine": kind.engine, "engine_options": own}
    python = environment(kind)
    return config(path.parent, path.name, alias=NAME, llm_options=options, python=python)


@contextmanager
def served(
    kind: Kind, directory: Path, *others: ServableStartConfig, **http: Any
) -> Iterator[Calls]:
    """The server, which has `others` as well; `http` are options of its port."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(directory / "cache"))
        patch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes a minute
        with serving(directory, start_config(kind, directory), *others, **http) as calls:
            yield calls


def complete(calls: Calls, **options: Any) -> dict[str, Any]:
    """The answer of OpenAI's completions to PROMPT."""
    body = {"model": NAME, "prompt": PROMPT, "temperature": 0, "max_tokens": COUNT, **options}
    status, answer = calls.http_call("POST", "/v1/completions", json.dumps(body))
    assert status == 200, answer
    return dict(json.loads(answer))


@contextmanager
def streaming(calls: Calls, **options: Any) -> Iterator[socket.socket]:
    """A client with a stream of the longest answer, of which nothing is read; it leaves at the
    end."""
    text = json.dumps({"prompt": PROMPT, "ignore_eos": True, "stream": True, **options})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n"
    with socket.create_connection(("127.0.0.1", calls.http), timeout=PATIENCE) as stream:
        stream.sendall(f"{head}Content-Type: application/json\r\n\r\n{text}".encode())
        yield stream


def row(calls: Calls) -> dict[str, Any]:
    """The servable, as the server lists it."""
    found = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return next(dict(one) for one in found if one["name"] == NAME)
