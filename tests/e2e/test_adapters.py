"""LoRA adapters that come and go while two workers serve: by vLLM's routes, commands, scripts."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from mindspore_serving import cli, server
from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import Calls, config, eventually, serving, workers
from tests.llm import chatty, lora_files

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROMPT = "What is the capital of France?"
OPTIONS = {"dtype": "f32", "kv_cache_memory": 16 << 20}
SEEDS = {"one": 1, "two": 2, "three": 3}
NUM_TOKENS = 12
LOADED = "serving_llm_adapter_loaded{"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/chatty, and adapters of it below adapters/."""
    place = tmp_path_factory.mktemp("loras")
    (place / "adapters").mkdir()
    (place / "models").mkdir()
    model = chatty.build(place / "models", context=4096)
    for name, seed in SEEDS.items():
        tensors = lora_files.adapter(model, lora_files.INNER, seed)
        lora_files.write(place / "adapters" / name, tensors)
        lora_files.merged(model, tensors, place / f"merged-{name}")
    lora_files.write(place / "outside", tensors)
    (place / "adapters" / "link").symlink_to(place / "outside")
    (place / "adapters" / "empty").mkdir()
    return place


@pytest.fixture(scope="module")
def texts(place: Path) -> dict[str, str]:
    """What each adapter, and the model itself, answers to PROMPT."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    found = {}
    paths = {name: place / f"merged-{name}" for name in SEEDS}
    for name, path in {"chatty": place / "models" / "chatty", **paths}.items():
        with LLM(path, **OPTIONS) as llm:
            found[name] = llm.generate(PROMPT, params)[0].outputs[0].text
    assert len(set(found.values())) == len(found)
    return found


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[Calls]:
    options = {**OPTIONS, "max_loras": 2, "max_lora_rank": 8}
    models = config(place / "models", "chatty", llm_options=options, num_parallel_workers=2)
    with serving(place, models, lora_directories=[str(place / "adapters")]) as calls:
        yield calls


@pytest.fixture
def calls(served: Calls) -> Iterator[Calls]:
    """Without adapters at the start and at the end."""
    yield served
    for name in set(listed(served)) - {"chatty"}:
        post(served, UNLOAD, lora_name=name)


def post(calls: Calls, path: str, **body: Any) -> tuple[int, Any]:
    headers = {"content-type": "application/json"}
    status, data = calls.http_call("POST", path, json.dumps(body), headers)
    return status, json.loads(data) if data[:1] == b"{" else data.decode()


def load(calls: Calls, name: str, path: object, **more: Any) -> tuple[int, Any]:
    return post(calls, LOAD, lora_name=name, lora_path=str(path), **more)


def listed(calls: Calls) -> dict[str, dict[str, Any]]:
    models = json.loads(calls.http_call("GET", "/v1/models")[1])["data"]
    return {one["id"]: one for one in models}


def ask(calls: Calls, model: str, **more: Any) -> tuple[int, Any]:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": NUM_TOKENS, **more}
    status, answer = post(calls, "/v1/completions", **body, ignore_eos=True)
    return status, answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]


def ask_all(calls: Calls, models: list[str]) -> list[tuple[int, Any]]:
    """At once, so that all workers answer some, and steps have rows of several adapters."""
    with ThreadPoolExecutor(len(models)) as threads:
        return list(threads.map(lambda model: ask(calls, model), models))


def answers(texts: dict[str, str], models: list[str]) -> list[tuple[int, str]]:
    return [(200, texts[name]) for name in models]


def test_a_loaded_adapter_is_listed_and_answers_in_all_workers(calls, place, texts):
    assert load(calls, "one", place / "adapters" / "one") == (
        200,
        "Success: LoRA adapter 'one' added successfully.",
    )
    assert load(calls, "two", "two")[0] == 200  # below the directory that is allowed
    found = listed(calls)
    assert list(found) == ["chatty", "one", "two"]
    assert found["one"]["parent"] == "chatty"
    assert found["one"]["root"] == str((place / "adapters" / "one").resolve())
    models = ["one", "two", "chatty"] * 4
    assert ask_all(calls, models) == answers(texts, models)


def test_an_unloaded_adapter_is_unknown_and_other_adapters_stay(calls, texts):
    load(calls, "one", "one")
    load(calls, "two", "two")
    status, text = post(calls, UNLOAD, lora_name="one", lora_int_id=None)
    assert (status, text) == (200, "Success: LoRA adapter 'one' removed successfully.")
    assert list(listed(calls)) == ["chatty", "two"]
    status, error = ask(calls, "one")
    assert (status, "The model 'one' does not exist" in error) == (404, True)
    assert (
        ask_all(calls, ["two", "chatty"] * 2) == [(200, texts["two"]), (200, texts["chatty"])] * 2
    )
    assert post(calls, UNLOAD, lora_name="one")[0] == 404


def test_a_name_gets_another_adapter_only_with_load_inplace(calls, texts):
    """Cached prompts of the one before are not used."""
    load(calls, "one", "one")
    assert ask_all(calls, ["one"] * 4) == [(200, texts["one"])] * 4
    status, answer = load(calls, "one", "two")
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert ask(calls, "one") == (200, texts["one"])
    assert load(calls, "one", "two", load_inplace=True)[0] == 200
    assert ask_all(calls, ["one"] * 4) == [(200, texts["two"])] * 4


def test_requests_that_run_go_on_when_their_adapter_is_unloaded(calls, place):
    load(calls, "one", "one")
    with calls.connect() as stream:
        body = json.dumps(
            {"model": "one", "prompt": PROMPT, "max_tokens": 600, "ignore_eos": True}
            | {"stream": True}
        )
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
        stream.sendall(f"{head}\r\ncontent-type: application/json\r\n\r\n{body}".encode())
        read = stream.makefile("rb")
        while not read.readline().startswith(b"data: "):
            pass
        assert post(calls, UNLOAD, lora_name="one")[0] == 200
        assert ask(calls, "one")[0] == 404
        while b"[DONE]" not in (line := read.readline()):
            assert b'"error"' not in line
    # Nothing holds it any more, so there is room for two.
    assert load(calls, "two", "two")[0] == 200
    assert eventually(lambda: load(calls, "three", "three")[0] == 200)
    status, answer = load(calls, "four", "one")
    assert (status, "expected at most 2 (max_loras)" in answer["error"]["message"]) == (429, True)


def test_workers_that_start_anew_have_the_adapters(calls, texts):
    load(calls, "one", "one")
    before = set(workers(os.getpid()))
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(set(workers(os.getpid())) - before) == 2, what="new workers")
    eventually(lambda: ask(calls, "one") == (200, texts["one"]))
    eventually(lambda: "serving_workers" in metrics(calls) and num_workers(calls) == 2)
    assert (
        ask_all(calls, ["one", "chatty"] * 3) == [(200, texts["one"]), (200, texts["chatty"])] * 3
    )


def metrics(calls: Calls) -> str:
    return calls.http_call("GET", "/metrics")[1].decode()


def num_workers(calls: Calls) -> float:
    lines = (line for line in metrics(calls).splitlines() if line.startswith("serving_workers{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_metrics_name_the_adapters(calls):
    load(calls, "one", "one")
    rows = [line for line in metrics(calls).splitlines() if line.startswith(LOADED)]
    assert len(rows) == 1
    assert 'servable="chatty"' in rows[0]
    assert 'adapter="one"' in rows[0]
    post(calls, UNLOAD, lora_name="one")
    assert LOADED not in metrics(calls)


@pytest.mark.parametrize(
    "refused",
    [
        ("new", "nowhere", "lora_path should be a directory, and 'nowhere' is none"),
        ("new", "../outside", "lora_path should be below a directory that the operator allows"),
        ("new", "link", "lora_path should be below a directory that the operator allows"),
        ("new", "/etc", "lora_path should be below a directory that the operator allows"),
        ("new", "one\0", "lora_path should be a directory, and has a character of code 0"),
        ("new", "empty", "has no adapter_config.json"),
        ("a/b", "one", "lora_name should be 1 to 128 letters"),
        ("", "one", "lora_name should be 1 to 128 letters"),
        ("chatty", "one", "lora_name should be another than 'chatty', which is taken"),
        ("default", "one", "lora_name should be another than 'default', which is taken"),
        ("new", "high", r"has r 9, expected at most 8 (max_lora_rank)"),
        ("new", "ints", "is I32, expected one of"),
        ("new", "wide", "it is an adapter of another model"),
        ("new", "other", "'model.layers.0.mlp.other.weight', which cannot be adapted"),
        ("new", "pickle", "adapter_model.safetensors is missing"),
    ],
)
def test_an_invalid_adapter_is_refused_and_changes_nothing(calls, broken, texts, refused):
    name, path, text = refused
    load(calls, "one", "one")
    status, answer = load(calls, name, path)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert text in answer["error"]["message"]
    assert list(listed(calls)) == ["chatty", "one"]
    assert ask_all(calls, ["one", "chatty"]) == answers(texts, ["one", "chatty"])


@pytest.fixture(scope="module")
def broken(place: Path) -> None:
    """Adapters that cannot be loaded."""
    directory = place / "adapters"
    layer = "base_model.model.model.layers.0"

    def pair(module: str, rank: int, sizes: tuple[int, int], dtype: torch.dtype) -> dict[str, Any]:
        down, up = torch.ones(rank, sizes[0], dtype=dtype), torch.ones(sizes[1], rank, dtype=dtype)
        name = f"{layer}.{module}.lora"
        return {f"{name}_A.weight": down, f"{name}_B.weight": up}

    query, floats = "self_attn.q_proj", torch.float32
    lora_files.write(directory / "high", pair(query, 9, (64, 64), floats), r=9)
    lora_files.write(directory / "ints", pair(query, 4, (64, 64), torch.int32))
    lora_files.write(directory / "wide", pair(query, 4, (96, 64), floats))
    lora_files.write(directory / "other", pair("mlp.other", 4, (64, 64), floats))
    pickled = lora_files.write(directory / "pickle", pair(query, 4, (64, 64), floats))
    torch.save({}, pickled / "adapter_model.bin")
    (pickled / "adapter_model.safetensors").unlink()


def test_a_body_without_a_name_is_refused(calls):
    status, answer = post(calls, LOAD, lora_path="one")
    assert (status, "lora_name" in answer["error"]["message"]) == (400, True)
    status, answer = load(calls, "one", "one", model="nothing")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_commands_and_scripts_load_and_unload(calls, place, texts, capsys):
    where = f"--http=127.0.0.1:{calls.http}"
    assert cli.main(["load-lora", "one", "one", where]) == 0
    assert ask(calls, "one") == (200, texts["one"])
    assert cli.main(["load-lora", "one", "two", where]) == 1
    assert cli.main(["load-lora", "one", "two", where, "--replace"]) == 0
    assert ask(calls, "one") == (200, texts["two"])
    assert cli.main(["unload-lora", "one", where]) == 0
    assert cli.main(["unload-lora", "one", where]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["one is loaded", "one is loaded", "one is unloaded"]
    assert "The adapter 'one' is loaded already" in printed.err
    server.load_lora("three", str(place / "outside"))  # a script may load any
    assert ask(calls, "three") == (200, texts["three"])
    with pytest.raises(RuntimeError, match="loaded already"):
        server.load_lora("three", str(place / "outside"))
    server.unload_lora("three")
    with pytest.raises(RuntimeError, match="'three' is not loaded"):
        server.unload_lora("three")


def test_adapters_stay_when_the_servable_is_loaded_anew(calls, texts):
    load(calls, "one", "one")
    server.load_servable("chatty", reload=True)
    assert list(listed(calls)) == ["chatty", "one"]
    assert ask_all(calls, ["one"] * 4) == [(200, texts["one"])] * 4
