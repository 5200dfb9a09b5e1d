"""Choice of the runtime "auto": "combined" for quantised GGUF files, else "openvino".

Each reason against "combined" is a function of `REASONS`; the first that applies is logged.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.catalog import AUTO, COMBINED, OPENVINO, RUNTIMES
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.gguf.projector import find_projector
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import OPTIONS, EngineConfig
from mindspore_serving.llm.models.dual import find_dual
from mindspore_serving.llm.options import check_runtime
from mindspore_serving.llm.runtimes.native.kernels.formats import FORMATS, Activations

ONLY_COMBINED = ("memory", "deterministic")  # options that "openvino" does not have
_LIBRARY = "llvmlite"
_TABLE = "token_embd.weight"  # whose rows are read, in any type


def choose_runtime(directory: Path, runtime: str, config: EngineConfig) -> str:
    """Return `runtime`, or what "auto" stands for with the model in `directory`.

    That is "torch" for towers of texts and images.

    Raises StartError for an option that only "combined" has, if there is a reason against it.
    """
    if runtime != AUTO:
        return runtime
    if not is_gguf(directory) and find_dual(find_config(directory)) is not None:
        return "torch"
    reason = reason_against(directory, config)
    if not reason:
        return COMBINED
    for name in filter(config.is_set, ONLY_COMBINED):
        able = (each for each in RUNTIMES if OPTIONS[name].name_in(each) and each != COMBINED)
        raise StartError(
            f"{name} is {getattr(config, name)!r}, which the runtime {COMBINED!r} has, but "
            f"{reason}: leave it out, or choose the runtime {' or '.join(able)}"
        )
    log_default(directory, reason)
    return OPENVINO


def log_default(directory: Path, reason: str) -> None:
    """Log why "auto" is "openvino" here."""
    log.info("%s: runtime openvino, and not combined: %s", directory.name, reason)


def reason_against(directory: Path, config: EngineConfig) -> str:
    """Return why "auto" is not "combined" for this model; "" if it is."""
    return next(filter(None, (each(directory, config) for each in REASONS)), "")


def _no_gguf(directory: Path, config: EngineConfig) -> str:
    return "" if is_gguf(directory) else "the model is no GGUF file"


def _images(directory: Path, config: EngineConfig) -> str:
    return "the model takes images" if config.max_images and find_projector(directory) else ""


def _option(directory: Path, config: EngineConfig) -> str:
    try:
        check_runtime(config, COMBINED)
    except StartError as error:
        return str(error)
    return ""


def _exact(directory: Path, config: EngineConfig) -> str:
    is_exact = config.dtype == "f32"
    return "dtype is 'f32', but native kernels round activations to int8" if is_exact else ""


def _draft(directory: Path, config: EngineConfig) -> str:
    return "" if config.draft is None else "there is a draft model"


def _library(directory: Path, config: EngineConfig) -> str:
    return f"{_LIBRARY} is not installed" if find_spec(_LIBRARY) is None else ""


def _floats(directory: Path, config: EngineConfig) -> str:
    kinds = {tensor.kind for tensor in open_gguf(directory).tensors.values()}
    floats = {name for name, row in FORMATS.items() if row.activations == Activations.FLOAT}
    return "" if kinds - floats else "its weights are not quantised"


def _blocks(directory: Path, config: EngineConfig) -> str:
    tensors = open_gguf(directory).tensors.items()
    kinds = {each.kind for name, each in tensors if len(each.shape) > 1 and name != _TABLE}
    unknown = sorted(kinds - set(FORMATS))
    return f"native kernels do not read blocks of {', '.join(unknown)}" if unknown else ""


def _instructions(directory: Path, config: EngineConfig) -> str:
    from mindspore_serving.llm.runtimes.native.kernels.compiler import instruction_set

    try:
        instruction_set()
    except StartError as error:
        return str(error)
    return ""


REASONS: tuple[Callable[[Path, EngineConfig], str], ...] = (
    _no_gguf, _images, _option, _exact, _draft, _library, _floats, _blocks, _instructions,
)  # fmt: skip
