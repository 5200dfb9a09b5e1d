"""`bench --engines` as docs/engines.md shows it, with the engines that read the real model."""

import json
from pathlib import Path

import pytest

from mindspore_serving.process.interpreter import CACHE
from tests.cli.commands import SERVING, Command
from tests.engines.served import KINDS, environment
from tests.engines.shown import commands, in_place
from tests.llm.real_model import real_model
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MANY = 10  # times PATIENCE: three servers, one after the other
LOAD = ["--concurrency", "1", "--requests", "2", "--input-tokens", "20", "--output-tokens", "4"]
OPTIONS = {  # as in KINDS: of a small cache, and a processor that others use, too
    "llama.cpp": "--max-model-len 512 --llm-option num_threads=1 --llm-option max_num_seqs=8 "
    "--engine-option use_extra_bufts=false",
    "genai": "--max-model-len 512 --llm-option kv_cache_memory=128e6",
}


def test_a_single_table_has_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    pythons = {kind.engine: environment(kind) for kind in KINDS if kind.engine in OPTIONS}
    places = {f"/opt/{name.replace('.', '')}/bin/python": one for name, one in pythons.items()}
    (shown,) = commands("bench")
    words = [*SERVING, "bench", *in_place(shown, {"./model.gguf": str(real_model()), **places})]
    for name, options in OPTIONS.items():
        words += ["--engine-serve", f"{name}={options}"]
    with Command([*words, *LOAD, "--json", "out.json"], tmp_path) as command:
        assert command.status(MANY * PATIENCE) == 0, command.text
    rows = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert {row["engine"] for row in rows} == {"ours", *OPTIONS}
    assert {row["generated_tokens"] for row in rows} == {2 * 4}
    assert all(row["memory_bytes"] > 90 << 20 for row in rows)  # the weights of the model
