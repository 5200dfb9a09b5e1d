"""What a model's authors recommend for sampling: generation_config.json beside its weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspore_serving import log
from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.tokenization.tokenizer import read_json

NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_recommended(directory: Path) -> dict[str, Any]:
    """Fields of SamplingParams, as far as the file has them.

    `do_sample` is not looked at: the file's writers leave it out and mean true.  A value that is
    out of range is left out, with a warning.  Raises StartError if the file is broken.
    """
    path = directory / "generation_config.json"
    found = {}
    for name, value in _stated(read_json(path)).items():
        try:
            SamplingParams(**{name: value})
        except InvalidInputs as error:
            log.warning("%s is not followed: %s", path, error)
        else:
            found[name] = value
    return found


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in NAMES if config.get(name) is not None}
