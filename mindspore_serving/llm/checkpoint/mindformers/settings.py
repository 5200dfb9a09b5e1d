"""MindFormers' `predict_*.yaml` in a model directory: it stands in for files that are not there.

    config.json                 model.model_config, or that of `pretrained_model_dir`
    generation_config.json      sampling in model.model_config, or that of `pretrained_model_dir`
    weights                     `load_checkpoint`, or those in `pretrained_model_dir`
    tokenizer, chat template    those in `pretrained_model_dir`

Relative paths are those of the directory. How many devices the file is for has no effect.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving.errors import InvalidInputs, StartError

Settings: TypeAlias = Mapping[str, Any]

PATTERN = "predict_*.yaml"
MAX_BYTES = 2**20
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
# MindFormers' names of settings -> those of config.json, and MindFormers' defaults.
NAMES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "max_position_embedding": "max_position_embeddings",
    "theta": "rope_theta",
}
DEFAULTS = {
    "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "vocab_size": 32000,
    "seq_length": 2048, "rms_norm_eps": 1e-5, "theta": 10000.0, "multiple_of": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
PASSED = (
    "hidden_size", "intermediate_size", "vocab_size", "rms_norm_eps", "tie_word_embeddings",
    "bos_token_id", "eos_token_id", "pad_token_id", "head_dim",
    "use_contiguous_weight_layout_attention", "use_interleaved_weight_layout_mlp",
)  # fmt: skip
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")
LLAMA = ("LlamaConfig", "LlamaForCausalLM", "ParallelLlamaForCausalLM")
PLAIN_ROPE = (None, "", "None")  # values of extend_method
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def directory_of(path: Path) -> Path:
    """Return the directory of a `predict_*.yaml`; any other path is returned unchanged."""
    return path.parent if path.match(PATTERN) and path.is_file() else path


def find_settings(directory: Path) -> Path | None:
    """Return the only `predict_*.yaml` in a directory, None if there is none, or several."""
    files = list(directory.glob(PATTERN)) if directory.is_dir() else []
    return files[0] if len(files) == 1 else None


def has_file(path: Path) -> bool:
    """Return whether a missing config.json or generation_config.json can be built."""
    is_known = path.name in (CONFIG, GENERATION_CONFIG) and not path.exists()
    return is_known and find_settings(path.parent) is not None


def read_file(path: Path) -> dict[str, Any] | Path:
    """Build config.json or generation_config.json, or return the path of the one that exists.

    Raises StartError naming the file and the setting that is not supported.
    """
    file, settings = _read(path.parent)
    other = _pretrained(path.parent, settings)
    if other is not None and (other / path.name).is_file():
        return other / path.name
    model = _model_config(settings)
    return _config(file, settings, model) if path.name == CONFIG else _generation(model)


def find_weights(directory: Path) -> Path | None:
    """Return the file or directory of weights that the settings in `directory` name, if any.

    Raises StartError if it does not exist.
    """
    if find_settings(directory) is None:
        return None
    file, settings = _read(directory)
    name = settings.get("load_checkpoint")
    if not name:
        return _pretrained(directory, settings)
    path = directory / str(name)
    if not path.exists():
        raise StartError(f"{file}: load_checkpoint is {str(name)!r}, which does not exist")
    return path


def text_directory(directory: Path, names: tuple[str, ...]) -> Path:
    """Return the directory of the tokenizer, by the names of its files: `directory` if it has one.

    Otherwise it is `pretrained_model_dir` of the settings in it.
    """
    if any((directory / name).exists() for name in names) or find_settings(directory) is None:
        return directory
    return _pretrained(directory, _read(directory)[1]) or directory


def read_adapter(directory: Path) -> Settings:
    """Return `pet_config`, which describes LoRA in the weights; empty if there is none."""
    if find_settings(directory) is None:
        return {}
    return _mapping(_model_config(_read(directory)[1]).get("pet_config"))


def _read(directory: Path) -> tuple[Path, Settings]:
    """Read the settings in `directory`.  Raises StartError naming the file and the line."""
    from mindspore_serving.core.yaml_text import load  # a worker's environment may lack PyYAML

    file = find_settings(directory)
    if file is None:
        raise StartError(f"{directory} has several {PATTERN}, expected one")
    try:
        if file.stat().st_size > MAX_BYTES:
            raise StartError(f"{file} has over {MAX_BYTES} bytes")
        settings = load(file.read_text("utf-8"), str(file))
    except (OSError, UnicodeDecodeError, InvalidInputs) as error:
        raise StartError(f"{file} cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise StartError(f"{file} holds a {type(settings).__name__}, expected settings by name")
    return file, settings


def _mapping(value: Any) -> Settings:
    return value if isinstance(value, dict) else {}


def _model_config(settings: Settings) -> Settings:
    return _mapping(_mapping(settings.get("model")).get("model_config"))


def _pretrained(directory: Path, settings: Settings) -> Path | None:
    name = settings.get("pretrained_model_dir")
    path = directory / str(name) if name else None
    return path if path is not None and path.is_dir() else None


def _config(file: Path, settings: Settings, model: Settings) -> dict[str, Any]:
    architecture = _mapping(_mapping(settings.get("model")).get("arch")).get("type")
    kind = architecture or model.get("type")
    if kind not in LLAMA:
        raise StartError(
            f"{file} is for {kind or 'a model of no type'}, whose sizes it does not have, expected "
            f"one of {', '.join(LLAMA)}, or the model's {CONFIG} beside it or in "
            "pretrained_model_dir"
        )
    model = {**DEFAULTS, **{name: value for name, value in model.items() if value is not None}}
    if _mapping(model.get("moe_config")).get("expert_num", 1) not in (0, 1):
        raise StartError(f"{file} has moe_config of several experts, expected {CONFIG} beside it")
    model.setdefault("max_position_embedding", model["seq_length"])
    model.setdefault("intermediate_size", _intermediate_size(file, model))
    config: dict[str, Any] = {new: model[old] for old, new in NAMES.items() if old in model}
    config |= {name: model[name] for name in PASSED if name in model}
    has_bias, has_output_bias = model.get("qkv_has_bias"), bool(model.get("attn_proj_has_bias"))
    config["attention_bias"] = has_output_bias
    is_qwen = has_bias and not has_output_bias
    name = "Qwen2ForCausalLM" if is_qwen else "LlamaForCausalLM"
    return {"architectures": [name], "hidden_act": "silu", **config, **_scaling(file, model)}


def _intermediate_size(file: Path, model: Settings) -> int:
    """Return the size that MindFormers computes from others."""
    try:
        size = 4 * model["hidden_size"]
        if model.get("ffn_dim_multiplier") is not None:
            size = int((model["ffn_dim_multiplier"] + 0.01) * size)
        multiple = int(model["multiple_of"])
        return -(-int(2 * size / 3) // multiple) * multiple
    except (TypeError, ValueError, ZeroDivisionError):
        raise StartError(
            f"{file}: hidden_size, ffn_dim_multiplier and multiple_of are "
            f"{model['hidden_size']!r}, {model.get('ffn_dim_multiplier')!r} and "
            f"{model['multiple_of']!r}, expected numbers over 0"
        ) from None


def _scaling(file: Path, model: Settings) -> dict[str, Any]:
    method, factors = model.get("extend_method"), model.get("scaling_factor")
    if method in PLAIN_ROPE:
        return {}
    if method == "LLAMA3" and isinstance(factors, dict):
        rope = {"original_max_position_embeddings": factors.get("original_max_position_embedding")}
        rope |= {name: factors[name] for name in LLAMA3_ROPE if name in factors}
        return {"rope_scaling": {"rope_type": "llama3", **rope}}
    if method in ("PI", "LINEAR") and isinstance(factors, int | float):
        return {"rope_scaling": {"rope_type": "linear", "factor": float(factors)}}
    raise StartError(
        f"{file}: extend_method is {method!r}, expected None, PI or LLAMA3, or the model's "
        f"{CONFIG} beside it"
    )


def _generation(model: Settings) -> dict[str, Any]:
    """Return generation_config.json: greedy without `do_sample`, as MindFormers has it."""
    config = {"eos_token_id": model["eos_token_id"]} if "eos_token_id" in model else {}
    if model.get("do_sample") is False:
        return {**config, "temperature": 0.0}
    return config | {name: model[name] for name in SAMPLING if model.get(name) is not None}
