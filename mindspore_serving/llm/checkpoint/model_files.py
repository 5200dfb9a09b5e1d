"""JSON files of a model directory: config.json, generation_config.json and others.

A GGUF file is read as if it were a directory of such files. Knows no tensor, no tokenizer and no
architecture.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from mindspore_serving import file_check, log
from mindspore_serving.core.default_sampling import RECOMMENDED, SEARCHED
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.checkpoint import mistral
from mindspore_serving.llm.checkpoint.gguf.files import has_file, read_file
from mindspore_serving.llm.checkpoint.mindformers import settings

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
_THINKERS = {  # by model_type of the whole model
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "qwen3_asr": "Qwen3ASRForConditionalGeneration",
}
_QWEN3_ASR_TEXT = {  # defaults of text_config in the files as their makers publish them
    "rope_theta": 5_000_000.0, "max_position_embeddings": 128_000, "tie_word_embeddings": False,
}  # fmt: skip
_OF_ALL_PARTS = ("quantization_config", "dtype", "torch_dtype", "transformers_version")
MAX_JSON_BYTES = 64 * 2**20


def find_config(directory: Path) -> dict[str, Any]:
    """Read config.json; return an empty object if there is none, as not every runtime needs it."""
    return read_optional_json(directory / CONFIG)


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in `path`.  Raises StartError if it is missing or no JSON object."""
    if has_file(path):
        return read_file(path)
    if mistral.has_file(path):
        return mistral.read_file(path)
    if settings.has_file(path):
        built = settings.read_file(path)
        if isinstance(built, dict):
            return built
        path = built
    value = load_json(path)
    if not isinstance(value, dict):
        raise StartError(f"{path} holds a {type(value).__name__}, expected an object")
    return _of_thinker(value) if path.name == CONFIG else value


def _of_thinker(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the part of Qwen-Omni, or of Qwen3-ASR, that reads and writes.

    Those of other models are unchanged.
    """
    name = _THINKERS.get(str(config.get("model_type")))
    thinker = config.get("thinker_config")
    if name is None or not isinstance(thinker, dict):
        return config
    of_all = {key: config[key] for key in _OF_ALL_PARTS if key in config}
    if config["model_type"] == "qwen3_asr" and isinstance(thinker.get("text_config"), dict):
        text = {**_QWEN3_ASR_TEXT, **thinker["text_config"], "model_type": "qwen3"}
        sounds = {"n_window": 100, **(thinker.get("audio_config") or {})}
        thinker = {**thinker, "text_config": text, "audio_config": sounds}
    return {**of_all, **thinker, "architectures": [name]}


def load_json(path: Path) -> Any:
    """Read any JSON value in `path`.  Raises StartError if it is missing or no JSON."""
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):  # a pipe or a device may be endless
            raise StartError(f"{path} is no regular file")
        if status.st_size > MAX_JSON_BYTES:
            raise StartError(f"{path} has over {MAX_JSON_BYTES} bytes")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise StartError(f"{path.parent} has no {path.name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be read: {error}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = file_check.why_no_model(path) or f"is not JSON: {error}"
        raise StartError(f"{path} {why}") from None


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read `path` as `read_json` does; return an empty object if it does not exist."""
    is_made = has_file(path) or settings.has_file(path) or mistral.has_file(path)
    is_file = path.exists() or is_made
    return read_json(path) if is_file else {}


def read_eos_ids(directory: Path) -> tuple[int, ...]:
    """Read the end tokens of generation_config.json or, without any, of config.json.

    Raises StartError naming a file that is broken, or an `eos_token_id` that is no int.
    """
    for name in (GENERATION_CONFIG, CONFIG):
        path = directory / name
        value = read_optional_json(path).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(token_id) is int for token_id in ids):
            raise StartError(f"{path}: eos_token_id is {ids!r}, expected an int or a list of ints")
        return tuple(ids)
    return ()


def read_recommended(directory: Path) -> dict[str, Any]:
    """Read the fields of SamplingParams that generation_config.json recommends.

    `do_sample` is ignored: writers of the file leave it out and mean true; but of a model with an
    encoder they mean the likeliest text, or a beam search, whose fields are in config.json if there
    is no such file. A value out of range is ignored with a warning. Raises StartError if the file
    is broken.
    """
    path = directory / GENERATION_CONFIG
    config, model = read_optional_json(path), find_config(directory)
    if model.get("is_encoder_decoder") and not config.get("do_sample"):
        return {"temperature": 0.0, **_usable(path, _searched(config or model), SEARCHED)}
    return _usable(path, config, RECOMMENDED)


def _searched(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with the limits of answers, which the decoder's first tokens count for here."""
    num_first = 1 if config.get("forced_bos_token_id") is None else 2
    lengths = {"min_tokens": config.get("min_length"), "max_tokens": config.get("max_length")}
    limits = {n: max(0, v - num_first) for n, v in lengths.items() if type(v) is int}
    return {**config, "min_tokens": config.get("min_new_tokens"), **limits}


def _usable(path: Path, config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    recommended = {}
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        try:
            SamplingParams(**{"temperature": 0.0, "max_tokens": None, name: value})
        except InvalidInputs as error:
            log.warning("a recommendation of %s is ignored: %s", path, error)
        else:
            recommended[name] = value
    return recommended
