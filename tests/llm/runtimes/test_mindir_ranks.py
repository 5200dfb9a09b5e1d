"""Language models as MindIR files that are split over ranks: tokens and refusals."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.export_mindir import export_mindir, main
from mindspore_serving.llm.runtimes import open_rank, open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.rank_threads import links, ranks
from tests.llm.running import generate_staggered, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
COUNT = 16
PIPELINE = "pipeline_parallel"


def open_alone(directory: Path, **options: int) -> None:
    """What is refused before the other ranks are waited for."""
    config = EngineConfig(**options)
    if config.num_ranks == 1:
        open_runner(directory, "mindir", config)
    with links(config.num_ranks) as own:
        open_rank(directory, "mindir", config, own[0])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of four layers."""
    return checkpoints.build("llama-deep", tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def halves(source: Path) -> Path:
    target = source.parent / "halves"
    assert main([str(source), str(target), "--ranks", "2"]) == 0
    return target


def test_two_ranks_match_the_complete_model(source: Path, halves: Path) -> None:
    """Prompts in pieces beside texts that decode, of one token too."""
    prompts = [(5,), *checkpoints.prompts(3)]
    with ranks(halves, 2, "mindir", by=PIPELINE) as runner:
        answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=7)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(source, prompt, answer)


def test_rank_files_have_only_their_layers(source: Path, halves: Path) -> None:
    sizes = [(halves / f"rank_{rank}" / "decode.mindir").stat().st_size for rank in (0, 1)]
    whole = (source / "model.safetensors").stat().st_size
    assert max(sizes) < 0.75 * whole
    shared = {"argmax.mindir", "topk.mindir", "config.json"}
    assert shared <= {path.name for path in halves.iterdir()}


def test_vectors_are_refused_and_the_ranks_go_on(halves: Path) -> None:
    step = Step((Row((5, 6), 0, (0,), 1),))
    with ranks(halves, 2, "mindir", by=PIPELINE) as runner:
        assert runner.hidden_size == 0
        with pytest.raises(ServingError, match="no embeddings"):
            runner.embed(step)
        assert runner.run(step).shape == (1, checkpoints.VOCAB)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "is cut for 2 ranks: give pipeline_parallel=2"),
        ({PIPELINE: 3}, "is cut for 2 ranks, not for 3: give pipeline_parallel=2"),
        ({"tensor_parallel": 2}, "MindIR files are split by layers: give only pipeline_parallel=2"),
    ],
)
def test_wrong_number_of_ranks_is_a_single_error(halves, options, problem) -> None:
    with pytest.raises(StartError, match=problem):
        open_alone(halves, **options)


def test_complete_model_is_refused_by_ranks(source: Path) -> None:
    with pytest.raises(StartError, match="has no rank_0, expected a model that is cut for 2 ranks"):
        open_alone(source, pipeline_parallel=2)


def test_files_of_another_export_are_refused(halves: Path, tmp_path: Path) -> None:
    """They have the shapes of the others, and would give tokens without meaning."""
    target = tmp_path / "mixed"
    shutil.copytree(halves, target)
    path = target / "rank_1" / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"export": "another"}))
    with pytest.raises(StartError, match=r"rank_1/rank.json is of rank 1 of 2 of export another"):
        open_alone(target, pipeline_parallel=2)
    path.write_text("{}")
    with pytest.raises(StartError, match=r"rank.json has \{\}, expected rank, size, export"):
        open_alone(target, pipeline_parallel=2)
    shutil.rmtree(target / "rank_1")
    with pytest.raises(StartError, match=r"rank_1 has no rank.json"):
        open_alone(target, pipeline_parallel=2)


@pytest.mark.parametrize("count", [0, 5])
def test_more_ranks_than_layers_are_not_exported(source: Path, tmp_path: Path, count: int) -> None:
    with pytest.raises(StartError, match=f"ranks is {count}, expected 1 to 4"):
        export_mindir(source, tmp_path / "target", count)
    assert not list(tmp_path.iterdir())
