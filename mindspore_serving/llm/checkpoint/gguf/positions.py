"""Rotary positions of a GGUF file, as in config.json."""

from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile

# YaRN's keys -> those of config.json.
YARN = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attn_factor": "attention_factor",
}
LOG_MULTIPLIER = 0.1  # factor of mscale_all_dim in DeepSeek's files


def positions_of(file: GgufFile, family: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return rope_scaling, and the share of a head that is rotated."""
    head_dim = config.get("head_dim") or 0
    rotated = file.metadata.get(f"{family}.rope.dimension_count") or head_dim
    if not type(rotated) is type(head_dim) is int:
        raise StartError(
            f"{file.path} has heads of {head_dim!r} numbers, of which {rotated!r} are rotated "
            f"({family}.rope.dimension_count), expected numbers"
        )
    share = {"partial_rotary_factor": rotated / head_dim} if head_dim else {}
    scaling = _scaling(file, family, config)
    return {**share, "rope_scaling": scaling} if scaling else share


def _scaling(file: GgufFile, family: str, config: dict[str, Any]) -> dict[str, Any]:
    def read(key: str) -> Any:
        return file.metadata.get(f"{family}.rope.{key}")

    kind = read("scaling.type") or ("linear" if read("scale_linear") else "none")
    factor = read("scaling.factor") or read("scale_linear") or 1.0
    original = read("scaling.original_context_length") or config.get("max_position_embeddings")
    scaling = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    divisors = divisors_of(file)
    if divisors:
        sharpness = read("scaling.attn_factor") if len(divisors) > 1 else 1.0
        scaling |= {"rope_type": "longrope", "short_factor": divisors[0]}
        return scaling | {"long_factor": divisors[-1], "attention_factor": sharpness or None}
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise StartError(f"{file.path} has rope scaling {kind!r}, expected linear, yarn or none")
    scaling |= {name: read(f"scaling.{key}") for key, name in YARN.items()}
    sharpness = read("scaling.yarn_log_multiplier")
    if family == "mistral3":
        growth = file.metadata.get(f"{family}.attention.temperature_scale")
        scaling |= {"mscale": 1.0, "mscale_all_dim": sharpness, "llama_4_scaling_beta": growth}
    elif sharpness:
        scaling |= dict.fromkeys(("mscale", "mscale_all_dim"), sharpness / LOG_MULTIPLIER)
    return scaling | {"truncate": family != "gpt-oss"}


def divisors_of(file: GgufFile) -> list[list[float]]:
    """Return divisors of the frequencies: a list for all texts, or for short and long ones."""
    names = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
    tensors = [file.tensors[name] for name in names if name in file.tensors]
    if any(tensor.kind != "F32" for tensor in tensors):
        raise StartError(f"{file.path} has rope factors that are not F32")
    return [tensor.rows.view("<f4").ravel().tolist() for tensor in tensors]
