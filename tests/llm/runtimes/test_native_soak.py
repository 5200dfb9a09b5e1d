"""Native steps whose threads lose their cores: the results stay the same, bit for bit."""

import pytest

pytest.importorskip("gguf")
pytest.importorskip("llvmlite")

from benchmarks.native_soak import PHASES, faults, soak
from tests.llm import gguf_files

pytestmark = pytest.mark.slow


def test_steps_whose_threads_lose_their_cores_give_the_same_results(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    phases = soak(path, seconds=1.0, phase_seconds=0.3, seed=1)
    assert {each["phase"] for each in phases} == set(PHASES)
    assert all(each["steps"] > 0 for each in phases)
    assert faults(phases) == []


def test_results_that_differ_and_memory_that_grows_are_faults():
    phases = [{"wrong": 0, "own": 50.0 + each} for each in range(5)]
    phases[1]["wrong"] = 2
    phases[-1]["own"] = 80.0
    assert faults(phases) == ["2 results differ from the first", "memory has grown by 28.0 MB"]
