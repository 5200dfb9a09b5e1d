"""Decoding steps as graphs.

On a CPU they are recorded and repeated by a substitute, which like a CUDA graph keeps every number
that the host had; on a GPU they are CUDA graphs.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.runtimes.layout import RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.torch import opening as runtime
from mindspore_serving.llm.runtimes.torch.graphs import batch_sizes
from mindspore_serving.llm.runtimes.torch.opening import open_runner
from mindspore_serving.llm.runtimes.torch.runner import TorchRunner, upload
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.running import advance, generate, texts
from tests.llm.torch_graph import Capture, Recorded

pytestmark = pytest.mark.torch
BLOCK = 8
COUNT = 48
MOST = 6
FEW = 24  # blocks, too few for all requests


@pytest.fixture(scope="module", params=["llama", "gemma2", "baichuan2-13b"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain attention; windows and softcap; ALiBi."""
    name = request.param
    folder = tmp_path_factory.mktemp("checkpoints")
    return checkpoints.build(name, folder, **checkpoints.two_layers(name))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.build("llama", tmp_path_factory.mktemp("llama"))


def opened(path: Path, **options: Any) -> TorchRunner:
    num_blocks = options.pop("num_blocks", 160)
    spec, _ = load_definition(json.loads((path / "config.json").read_text()))
    memory = num_blocks * BLOCK * 2 * spec.num_layers * spec.kv_size * 4
    config = {"device": "cpu", "block_size": BLOCK, "kv_cache_memory": memory} | options
    return open_runner(path, EngineConfig(max_model_len=128, **config))


def captured(path: Path, most: int = MOST, **options: Any) -> tuple[TorchRunner, Capture]:
    runner, capture = opened(path, **options), Capture()
    runner.use_graphs(capture, most)
    return runner, capture


def answers(runner: TorchRunner, num_requests: int) -> tuple[dict[str, list[int]], int]:
    """COUNT tokens or fewer for each of some requests that come two steps after each other, and
    how often a sequence was preempted."""
    config = EngineConfig(
        max_num_seqs=MOST, max_num_batched_tokens=32, block_size=BLOCK, num_speculative_tokens=0
    )
    engine = Engine(runner, None, config)
    waiting = list(enumerate(checkpoints.prompts(num_requests, longest=40)))
    said: dict[str, list[int]] = defaultdict(list)
    step = 0
    while waiting or engine.has_work:
        if waiting and step % 2 == 0:
            index, prompt = waiting.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=COUNT - 7 * index)
            engine.add(str(index), list(prompt), params)
        for name, generated in engine.step():
            said[name] += generated.token_ids
        step += 1
    return dict(said), engine.stats().num_preemptions


def test_batch_sizes_are_dense_for_small_batches() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(6) == [1, 2, 4, 6]
    assert batch_sizes(32) == [1, 2, 4, 8, 16, 24, 32]
    assert batch_sizes(64)[-3:] == [48, 56, 64]
    assert batch_sizes(700)[-6:] == [248, 256, 384, 512, 640, 700]


def test_graphs_match_eager_steps(model: Path) -> None:
    """Requests come and go, prompts come in pieces between, and the cache is too small for all."""
    runner, capture = captured(model, num_blocks=FEW)
    assert runner.num_blocks == FEW
    found, num_preemptions = answers(runner, 7)
    wanted, _ = answers(opened(model, num_blocks=FEW), 7)
    assert num_preemptions > 0
    assert found == wanted
    assert [len(found[str(index)]) for index in range(7)] == [COUNT - 7 * i for i in range(7)]
    assert len(capture.runs) == len(batch_sizes(MOST))
    assert all(runs > 0 for runs in capture.runs)


def test_graphs_match_the_reference(model: Path) -> None:
    """Five texts in a graph of six, then fewer; up to the longest that the model may have."""
    runner, capture = captured(model)
    prompts = [prompt[:60] for prompt in checkpoints.prompts(5)]
    batch = texts(runner, prompts, COUNT)
    advance(runner, batch)
    assert sum(capture.runs) == 0
    for text, prompt in zip(batch, prompts, strict=True):
        generate(runner, batch, COUNT)
        assert text.answer == checkpoints.likeliest(model, prompt, text.answer)
    assert sum(capture.runs) == COUNT - 1


def test_the_largest_graph_is_recorded_first(llama: Path) -> None:
    runner, capture = captured(llama)
    advance(runner, batch := texts(runner, [(3,), (4, 5)], COUNT))
    for count, size in ((1, 1), (2, 2)):
        before = list(capture.runs)
        advance(runner, batch[:count])
        place = batch_sizes(MOST)[::-1].index(size)
        assert [now - then for now, then in zip(capture.runs, before, strict=True)] == [
            int(index == place) for index in range(len(before))
        ]


def rows(tokens: Sequence[int], blocks: Sequence[int]) -> tuple[Row, ...]:
    return tuple(Row([token], 0, [block], 1) for token, block in zip(tokens, blocks, strict=True))


def test_padding_writes_to_no_block_that_a_sequence_may_have(llama: Path) -> None:
    """Five rows in a graph of six: of all other blocks nothing has changed."""
    runner, capture = captured(llama)
    keys, values = runner._cache.layers[1]
    for cache in (keys, values):
        cache.fill_(7.0)
    runner.run(Step(rows([3, 4, 5, 6, 7], [0, 1, 2, 3, 4])))
    assert sum(capture.runs) == 1
    for cache in (keys, values):
        assert (cache[5 : runner.num_blocks] == 7.0).all()
        assert (cache[:5, 1:] == 7.0).all()
        assert (cache[:5, 0] != 7.0).all()


def test_copies_are_done_before_a_graph(llama: Path) -> None:
    runner, capture = captured(llama)
    (text,) = texts(runner, [(3, 4, 5)], COUNT)
    advance(runner, [text])
    spare = next(b for b in range(runner.num_blocks) if b not in text.blocks)
    moved = Row(text.tokens[-1:], 3, [spare, *text.blocks[1:]], 1)
    logits = runner.run(Step((moved,), ((text.blocks[0], spare),)))
    assert sum(capture.runs) == 1
    expected = checkpoints.logits(llama, (3, 4, 5, text.tokens[-1]))[-1]
    np.testing.assert_allclose(logits[0], expected, atol=1e-4)


@pytest.mark.parametrize(
    "step",
    [
        Step((Row([3, 4], 0, [0], 1),)),
        Step((Row([3], 0, [0], 1), Row([4], 0, [1], 0))),
        Step(rows(range(3, 10), range(7))),
        Step(()),
    ],
    ids=["two tokens", "no logits wanted", "more rows than a graph has", "no rows"],
)
def test_other_steps_are_eager(llama: Path, step: Step) -> None:
    runner, capture = captured(llama)
    np.testing.assert_allclose(runner.run(step), opened(llama).run(step), atol=1e-5)
    assert sum(capture.runs) == 0


def test_a_row_with_an_adapter_is_eager(llama: Path) -> None:
    runner, capture = captured(llama)
    limits = RunnerLimits(BLOCK, runner.num_blocks, checkpoints.VOCAB, 128, adapters={1})
    assert runner._graphs is not None
    for adapter, is_graph in ((0, True), (1, False)):
        step = Step((Row([3], 0, [0], 1, adapter), Row([4], 0, [1], 1)))
        with torch.inference_mode():
            logits = runner._graphs.run(lay_out(step, limits))
        assert (logits is not None) == is_graph
    assert sum(capture.runs) == 1


def test_embeddings_are_eager(llama: Path) -> None:
    runner, capture = captured(llama)
    step = Step(rows([3, 4], [0, 1]))
    np.testing.assert_allclose(runner.embed(step), opened(llama).embed(step), atol=1e-6)
    assert sum(capture.runs) == 0


def test_a_refused_row_leaves_the_graphs_as_they_were(llama: Path) -> None:
    runner, capture = captured(llama)
    with pytest.raises(ServingError, match="row 1 has blocks"):
        runner.run(Step(rows([3, 4], [0, runner.num_blocks])))
    logits = runner.run(Step(rows([3], [0])))
    np.testing.assert_allclose(logits[0], checkpoints.logits(llama, (3,))[-1], atol=1e-4)


def test_a_closed_runner_has_no_graphs(llama: Path) -> None:
    runner, _ = captured(llama)
    runner.close()
    with pytest.raises(ServingError, match="closed"):
        runner.run(Step(rows([3], [0])))


def warmed_up(
    path: Path, monkeypatch: pytest.MonkeyPatch, capture: Any
) -> tuple[TorchRunner, list[str]]:
    """A runner as a CUDA device has it, and the warnings on the way."""
    lines: list[str] = []
    monkeypatch.setattr(runtime, "CudaCapture", lambda device: capture)
    monkeypatch.setattr(runtime.log, "warning", lambda text, *values: lines.append(text % values))
    runner = opened(path)
    config = EngineConfig(max_num_seqs=MOST, block_size=BLOCK, device="cpu")
    runtime._warm_up(runner, runtime.open_model(path, config), config, can_capture=True)
    return runner, lines


def test_a_runner_is_warm_before_the_first_request(
    llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    runner, lines = warmed_up(llama, monkeypatch, capture := Capture())
    assert lines == []
    assert len(capture.runs) == len(batch_sizes(MOST))
    assert "| 4/4 [" in capsys.readouterr().err
    runner.run(Step(rows([3], [0])))
    assert sum(capture.runs) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("mixtral", "no CUDA graphs: experts"), ("llama", "no CUDA graphs: th")],
)
def test_failed_capture_falls_back_to_eager_with_a_warning(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(work: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    path = checkpoints.build(name, tmp_path)
    runner, lines = warmed_up(path, monkeypatch, fails)
    assert [line[: len(text)] for line in lines] == [text]
    logits = runner.run(Step(rows([3], [0])))
    np.testing.assert_allclose(logits[0], checkpoints.logits(path, (3,))[-1], atol=1e-4)


def test_experts_cannot_be_recorded(tmp_path: Path) -> None:
    """Which of them compute is decided on the host: the stand-in refuses what CUDA would."""
    runner = opened(checkpoints.build("mixtral", tmp_path))
    with pytest.raises(RuntimeError, match="cannot be captured"):
        runner.use_graphs(Capture(), 1)


def test_cpu_graph_substitute_keeps_host_values() -> None:
    static, out = torch.ones(2), torch.zeros(2)
    number = 3.0
    recorded = Recorded()
    with recorded:
        out.copy_(static[1:].expand(2) * number)
    number, static[1] = 5.0, 2.0
    recorded.replay()
    assert out.tolist() == [6.0, 6.0]


def test_indices_are_uploaded_together_and_aligned() -> None:
    arrays = [np.arange(3), np.arange(6).reshape(2, 3), np.zeros(0, int), np.array([9])]
    found = upload(arrays, "cpu")
    for array, tensor in zip(arrays, found, strict=True):
        assert tensor.dtype == torch.int64
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.data_ptr() % 16 == 0 or not array.size
    assert len({tensor.untyped_storage().data_ptr() for tensor in found}) == 1


@pytest.mark.gpu
def test_on_a_gpu_graphs_match_eager_steps(model: Path) -> None:
    options = {"device": "cuda", "dtype": "f32", "max_num_seqs": MOST, "num_blocks": FEW}
    runner = opened(model, **options)
    assert runner._graphs is not None
    found, num_preemptions = answers(runner, 7)
    runner._graphs = None
    wanted, _ = answers(runner, 7)
    assert num_preemptions > 0
    assert found == wanted == answers(opened(model, num_blocks=FEW), 7)[0]


@pytest.mark.gpu
def test_on_a_gpu_graphs_in_bfloat16_are_near_eager_steps(model: Path) -> None:
    runner = opened(model, device="cuda", max_num_seqs=MOST)
    prompts = checkpoints.prompts(5)
    batch = texts(runner, prompts, COUNT)
    advance(runner, batch)
    for _ in range(10):
        step = Step(tuple(text.row(1) for text in batch))
        by_graph = runner.run(step).copy()
        graphs, runner._graphs = runner._graphs, None
        eager = runner.run(step).copy()
        runner._graphs = graphs
        assert graphs is not None
        assert np.abs(by_graph - eager).max() < 0.02 * np.abs(eager).max()
        advance(runner, batch)
