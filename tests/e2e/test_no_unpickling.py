"""No process of a server unpickles anything, whatever is sent between them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_serving import server
from tests.cli import commands
from tests.e2e.gangs import GangScripts
from tests.e2e.harness import config, write_servable
from tests.e2e.unpickling import Record
from tests.llm import chatty

pytestmark = pytest.mark.e2e
SOURCE = """
llm = register.declare_llm(
    "../chatty", runtime="torch", dtype="f32", max_num_seqs=2, tensor_parallel=2,
    kv_cache_memory=64 << 20, num_threads=2,
)
"""


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pickle.loads(pickle.dumps(print))", ["by pickle.loads", "builtins.print"]),
        ("pickle.loads(pickle.dumps([1]))", ["by pickle.loads"]),
        ("import _pickle; _pickle.loads(pickle.dumps(print))", ["builtins.print"]),
    ],
)
def test_unpickling_would_be_detected(record, code, expected):
    environment = {**os.environ, **record.environment}
    subprocess.run([sys.executable, "-c", f"import pickle; {code}"], env=environment, check=True)
    assert record.started("-c") == 1
    assert [line.split("\t")[0] for line in record.unpickled] == [
        f"unpickled {one}" for one in expected
    ]


def test_a_distributed_servable_unpickles_nothing(record, tmp_path):
    """Its server, its worker and its two agents; answers and errors of a model."""
    made = GangScripts(tmp_path)
    try:
        serving = made.start_server(**record.environment)
        made.start_agents(environment=record.environment)
        serving.says("it serves")
        assert made.ask(1.0) == [[3.0, 3.0]]
        assert "no 13" in str(made.ask(13.0))
    finally:
        made.close()
    assert record.started("server.py") == 1
    assert record.started("mindspore_serving.worker") >= 1
    assert record.started("mindspore_serving.distributed") == 2
    assert record.unpickled == []


@pytest.mark.torch
def test_a_model_over_ranks_on_a_joined_machine_unpickles_nothing(
    record, start_cluster, monkeypatch
):
    """The node, its worker, the other rank, and the processes that prepare long prompts."""
    pytest.importorskip("torch")
    environment = {**commands.environment(), **record.environment}
    monkeypatch.setattr(commands, "environment", lambda: environment)
    made = start_cluster(local_slots=0)
    made.join("one", "--slots", "2")
    chatty.build(made.directory, context=65536)
    write_servable(made.directory, "cut", SOURCE)
    server.start_servables(config(made.directory, "cut"))
    for prompt in ("Once", "once upon a time " * 1000):
        body = {"model": "cut", "prompt": prompt, "max_tokens": 4}
        status, text = made.calls.http_call("POST", "/v1/completions", json.dumps(body).encode())
        assert (status, json.loads(text)["object"]) == (200, "text_completion")
    for words in ("worker --join", "mindspore_serving.worker", "runtimes.rank", "processing"):
        assert record.started(words) >= 1, words
    assert record.unpickled == []
