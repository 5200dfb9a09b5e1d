"""The combined runtime: results whichever of its two computes, and its thread in the background."""

import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("llvmlite")
pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.combined import opening, packing
from mindspore_serving.llm.runtimes.combined.choice import Choice
from mindspore_serving.llm.runtimes.main_memory import MainMemory
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints, gguf_files
from tests.llm.stepping import all_logits, greedy, relative_error
from tests.waiting import eventually

pytestmark = pytest.mark.torch
CONFIG = EngineConfig(
    dtype="f32", kv_cache_memory=2**21, max_num_seqs=4, max_num_batched_tokens=64, num_threads=1
)
ALL, SMALL, NONE = 10**6, 4, 0  # tokens of the largest step of the native runtime
SWITCHING = "at every step"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return checkpoints.build(
        "llama", tmp_path_factory.mktemp("combined"), **checkpoints.two_layers("llama")
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(packing, "DELAY", 0.0)
    monkeypatch.setenv("SERVING_WARM_UP_SECONDS", "0")


@pytest.fixture(scope="module", params=["f32", "f16"])
def packed(request, llama):
    """A runner that has packed, with a cache of this type."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "DELAY", 0.0)
        runner = open_runner(llama, "combined", replace(CONFIG, kv_cache_dtype=request.param))
        eventually(lambda: runner.packing.is_done)
    assert runner.packing.choice is not None
    yield runner
    runner.close()


class Switching:
    """A runner whose two runtimes take turns."""

    def __init__(self, runner):
        self._runner, self._native = runner, False
        self.num_blocks, self.num_slots = runner.num_blocks, runner.num_slots

    def run(self, step):
        self._native = not self._native
        self._runner.packing.choice = Choice(ALL if self._native else NONE)
        return self._runner.run(step)


def chosen(runner, last_native):
    if last_native == SWITCHING:
        return Switching(runner)
    runner.packing.choice = Choice(last_native)
    return runner


@pytest.mark.parametrize("last_native", [ALL, SMALL, NONE, SWITCHING])
def test_greedy_tokens_are_those_of_the_reference(packed, llama, last_native):
    """Prompts come in pieces, beside sequences that go on.  A cache in f16 decides some ties."""
    prompts, options = checkpoints.prompts(3), {"chunk": 13, "arrivals": [0, 1, 5]}
    answers = greedy(chosen(packed, last_native), prompts, 24, **options)
    if is_f32(packed):
        assert answers == [checkpoints.greedy(llama, prompt, 24) for prompt in prompts]
    else:
        assert answers == greedy(chosen(packed, ALL), prompts, 24, **options)


def is_f32(runner):
    return " F32 " in runner.block_format


def test_logits_over_a_cache_of_the_other_runtime_are_close(packed):
    """Relative to those of one runtime: 1e-5 with a cache in f32, 1e-3 in f16."""
    limit = 1e-5 if is_f32(packed) else 1e-3
    prompt, last = checkpoints.prompts(1)[0], 9
    table = list(range(4))
    of_native = all_logits(chosen(packed, ALL), [*prompt, last])[-1:]
    for first, second in ((ALL, NONE), (NONE, ALL), (NONE, NONE)):
        chosen(packed, first).run(Step((Row(prompt, 0, table, 0),)))
        row = Row([last], len(prompt), table, 1)
        logits = np.array(chosen(packed, second).run(Step((row,))))
        assert relative_error(logits, of_native) < limit


def test_steps_of_the_native_runtime_are_counted(packed):
    before = packed.num_native_steps
    for last_native in (ALL, NONE, ALL):
        chosen(packed, last_native).run(Step((Row([5], 0, [0], 1),)))
    assert packed.num_native_steps == before + 2


def test_the_decision_is_told_with_its_times(llama, monkeypatch):
    monkeypatch.setattr(packing, "DELAY", 60.0)
    waiting = open_runner(llama, "combined", CONFIG)
    assert waiting.decision.startswith("native computes all steps, until openvino is packed")
    waiting.close()
    monkeypatch.setattr(packing, "DELAY", 0.0)
    runner, decisions = open_runner(llama, "combined", CONFIG), []
    runner.call_when_decided(lambda: decisions.append(runner.decision))
    eventually(lambda: decisions)
    runner.call_when_decided(lambda: decisions.append(runner.decision))
    assert decisions == [runner.packing.choice.describe()] * 2
    runner.close()
    alone = open_runner(llama, "combined", replace(CONFIG, deterministic=True))
    assert alone.decision == "native computes all steps"
    alone.close()


def test_hidden_states_of_both_runtimes_are_close(packed):
    step = Step((Row(checkpoints.prompts(1)[0], 0, range(4), 3),))
    native, openvino = (np.array(chosen(packed, which).embed(step)) for which in (ALL, NONE))
    assert relative_error(openvino, native) < 1e-3


def test_a_block_is_stored_and_restored_for_both_runtimes(packed):
    prompt = checkpoints.prompts(1)[0]
    chosen(packed, NONE).run(Step((Row(prompt, 0, [0, 1, 2], 0),)))
    contents = [bytes(packed.read_block(block)) for block in (0, 1, 2)]
    packed.release_blocks([0, 1, 2])
    for block, content in zip((3, 4, 5), contents, strict=True):
        packed.write_block(block, memoryview(content))
    row = Row(prompt[-1:], len(prompt) - 1, [3, 4, 5], 1)
    native, openvino = (np.array(chosen(packed, which).run(Step((row,)))) for which in (ALL, NONE))
    assert relative_error(native, openvino) < 1e-3


def test_the_block_of_measured_steps_is_none_of_the_engine(packed):
    with pytest.raises(ServingError, match="blocks"):
        packed.run(Step((Row([5], 0, [packed.num_blocks + 1], 1),)))
    assert packed.packing.runner.num_blocks == packed.num_blocks + 1


def threads():
    return {each for each in threading.enumerate() if each.name.startswith("packing")}


@pytest.mark.parametrize("part", ["before", "build_model", "compile_graph", "release_pages"])
def test_closing_during_packing_leaves_no_thread(llama, monkeypatch, part):
    """The thread is in that part of opening OpenVINO's graph."""
    from mindspore_serving.llm.runtimes.openvino import opening as of_openvino
    from mindspore_serving.llm.runtimes.openvino import runner as runner_module

    reached, go_on = threading.Event(), threading.Event()
    if part != "before":
        module = runner_module if part == "release_pages" else of_openvino
        function = getattr(module, part)

        def wait(*values, **options):
            reached.set()
            assert go_on.wait(60)
            return function(*values, **options)

        monkeypatch.setattr(module, part, wait)
    else:
        monkeypatch.setattr(packing, "DELAY", 60.0)
        reached.set()
    runner = open_runner(llama, "combined", CONFIG)
    assert reached.wait(60)
    assert runner.run(Step((Row([5], 0, [0], 1),))).shape == (1, checkpoints.VOCAB)
    threading.Timer(0.05, go_on.set).start()
    runner.close()
    assert not threads()
    with pytest.raises(ServingError, match="closed"):
        runner.run(Step((Row([5], 0, [0], 1),)))


def test_a_failure_in_the_background_is_logged_and_native_goes_on(llama, monkeypatch, capfd):
    from mindspore_serving.llm.runtimes.openvino import opening as of_openvino

    def fail(*values, **options):
        raise StartError("no graph today")

    monkeypatch.setattr(of_openvino, "compile_graph", fail)
    runner = open_runner(llama, "combined", CONFIG)
    eventually(lambda: runner.packing.is_done)
    assert "openvino has failed: no graph today" in capfd.readouterr().err
    assert runner.decision == "native computes all steps, as openvino has failed: no graph today"
    prompt = checkpoints.prompts(1)[0]
    assert greedy(runner, [prompt], 8) == [checkpoints.greedy(llama, prompt, 8)]
    runner.close()


@pytest.mark.parametrize("options", [{"memory": "low"}, {"deterministic": True}])
def test_options_low_memory_and_deterministic_pack_nothing(llama, options):
    runner = open_runner(llama, "combined", replace(CONFIG, **options))
    assert runner.packing is None
    assert not threads()


def test_weights_are_not_packed_without_memory_for_them(llama, monkeypatch, capfd):
    memory = MainMemory(2**34, opening.LIBRARY_BYTES)
    monkeypatch.setattr(opening, "read_main_memory", lambda: memory)
    runner = open_runner(llama, "combined", CONFIG)
    assert runner.packing is None
    assert "0.2 GB of memory are free" in capfd.readouterr().err


def test_memory_for_packed_weights_is_not_given_to_the_cache(llama, monkeypatch):
    memory = MainMemory(2**30, 2 * opening.LIBRARY_BYTES)
    monkeypatch.setattr(opening, "read_main_memory", lambda: memory)
    seen = []
    limits = opening.runner_limits

    def record(config, spec, block_bytes, memory):
        seen.append(memory.available)
        return limits(config, spec, block_bytes, memory)

    monkeypatch.setattr(opening, "runner_limits", record)
    open_runner(llama, "combined", CONFIG).close()
    assert seen[0] < opening.LIBRARY_BYTES


def test_a_cache_in_u8_is_refused(llama):
    with pytest.raises(StartError, match="kv_cache_dtype is 'u8'"):
        open_runner(llama, "combined", replace(CONFIG, kv_cache_dtype="u8"))


def test_results_stay_until_the_next_step_while_both_are_measured(llama, monkeypatch):
    """A measured step would overwrite the logits of the native runtime."""
    monkeypatch.setattr(packing, "DELAY", 60.0)
    runner = open_runner(llama, "combined", CONFIG)
    step = Step((Row([5], 0, [0], 1),))
    logits = runner.run(step)
    kept = logits.copy()
    runner._native.run(Step((Row([77], 0, [1], 1),)))
    np.testing.assert_array_equal(logits, kept)
    runner.close()


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_deterministic_logits_are_the_same_in_any_batch(kind, tmp_path):
    """Alone, beside others, and with the prompt in other pieces."""
    path = gguf_files.write_model(tmp_path / "model.gguf", kind=kind)
    config = EngineConfig(kv_cache_memory=2**20, deterministic=True)
    runner = open_runner(path, "combined", config)
    prompt, others = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 2], [[7, 8, 2, 1], [5], [11, 12]]
    alone = all_logits(runner, prompt)
    rows = [Row(other, 0, [5 + index], 1) for index, other in enumerate(others)]
    first = runner.run(Step((*rows, Row(prompt[:6], 0, [1], 6)))).copy()
    second = runner.run(Step((Row(prompt[6:], 6, [1], 5), *rows)))
    np.testing.assert_array_equal(np.concatenate([first[3:], second[:5]]), alone)
