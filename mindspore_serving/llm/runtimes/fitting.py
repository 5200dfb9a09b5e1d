"""Check that the weights of a model, or a machine's share of them, fit into main memory."""

from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.main_memory import read_main_memory

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".ckpt", ".mindir")  # endings of files of weights


def check_fits(path: str | Path, share: float = 1.0) -> None:
    """Raise StartError if `share` of the weights of the model at `path` exceeds the free memory.

    Weights may take more in memory than in files, but hardly less.
    """
    path = Path(path)
    files = [path] if path.is_file() else [*path.iterdir()]
    size = sum(file.stat().st_size for file in files if file.suffix in _WEIGHTS) * share
    available = read_main_memory().available
    if size > available:
        raise StartError(
            f"{share:.0%} of the weights in {path}, {size / 2**20:,.0f} MiB, do not fit into the "
            f"{available / 2**20:,.0f} MiB of memory that are free on this machine: let another "
            "one join, or free memory"
        )
