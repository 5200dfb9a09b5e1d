"""Language models as MindIR files, which `llm.export_mindir` writes, on CPUs in float32.

Sequences with one new token go into one call of the decode graph, the others into calls of the
prefill graph, by their number of new tokens.
"""

from collections.abc import Sequence
from pathlib import Path

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.model_files import read_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.capacity import cache_block_bytes, check_options, runner_limits
from mindspore_serving.llm.runtimes.layout import RunnerLimits
from mindspore_serving.llm.runtimes.mindir.export_weights import exportable
from mindspore_serving.llm.runtimes.mindir.graphs import Graphs
from mindspore_serving.llm.runtimes.mindir.library import use_cpu
from mindspore_serving.llm.runtimes.mindir.runner import DenseRunner
from mindspore_serving.llm.step import Row, Step

ACCEPTED = {
    "device": ("auto", "cpu"),
    "dtype": ("auto", "f32"),
    "kv_cache_dtype": ("auto", "f32"),
    "quantization": (None,),
    "num_threads": (None,),
}


def open_runner(directory: str | Path, config: EngineConfig) -> DenseRunner:
    """The MindIR files in `directory`, loaded and compiled, ready to run.

    Of `config`: `device` "auto" or "cpu"; `dtype` and `kv_cache_dtype` "auto" or "f32".
    Raises StartError: an option that it does not have, files that are missing, broken or do not fit
    config.json, no memory.
    """
    check_options(config, "mindir", ACCEPTED)
    directory = Path(directory)
    spec = exportable(read_config(directory))
    use_cpu()
    graphs = Graphs(directory, spec)
    _compile(spec, graphs)
    limits = runner_limits(config, spec, cache_block_bytes(config, spec, element_size=4))
    return DenseRunner(spec, graphs, limits)


def _compile(spec: ModelSpec, graphs: Graphs) -> None:
    """Compile both graphs by computing a text; StartError if they do not fit config.json."""
    runner = DenseRunner(spec, graphs, RunnerLimits(2, 2, spec.vocab_size, 3))
    steps: Sequence[Row] = (Row([0, 0], 0, [0], 1), Row([0], 2, [0, 1], 1))
    for row in steps:
        try:
            runner.run(Step((row,)))
        except (ServingError, ValueError) as error:
            raise StartError(f"the MindIR files do not fit config.json: {error}") from error
