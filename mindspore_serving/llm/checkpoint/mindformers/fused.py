"""Fused matrices of MindFormers, in parts: queries, keys and values; gates and hidden states.

    attention.w_qkv, linear_qkv               for each key-value head the rows of its queries, its
                                              key and its value; or all queries, all keys and all
                                              values, by `use_contiguous_weight_layout_attention`
    feed_forward.w_gate_hidden, linear_fc1    a gate and a hidden row in turn; or all gates and all
                                              hidden rows, by `use_interleaved_weight_layout_mlp`
    mlp.experts.weight1, weight2              [experts * inputs, outputs]: all gates, all hidden

Both settings are read from the configuration, and have MindFormers' defaults there: false and true.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.derived import DerivedTensor, take_rows
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

Config: TypeAlias = Mapping[str, Any]
Tensors: TypeAlias = dict[str, StoredTensor]

CONTIGUOUS_QKV = "use_contiguous_weight_layout_attention"
INTERLEAVED_MLP = "use_interleaved_weight_layout_mlp"
HEADS = ("num_key_value_heads", "num_query_groups", "n_kv_heads", "num_attention_heads")
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts")
QKV, FC1 = "self_attn.linear_qkv", "linear_fc1"
OF_INPUTS = ("input_scale", "input_offset", "input_zp", "smooth_scale")  # not a number per row
_EXPERT = re.compile(r"(.*\.experts)\.weight([12])")


def split_fused(tensors: Tensors, config: Config, label: str) -> Tensors:
    """Return `tensors` with fused matrices in parts, which are read when they are used.

    `label` begins errors and names the checkpoint. Raises StartError for a matrix that does not
    fit the configuration.
    """
    result: Tensors = {}
    orders: dict[str, str] = {}
    for name, stored in tensors.items():
        parts: Tensors | None = None
        if not name.startswith("model."):  # of an optimizer
            pass
        elif f".{QKV}." in name:
            is_contiguous = _flag(config, CONTIGUOUS_QKV, default=False)
            orders[QKV] = f"{CONTIGUOUS_QKV}={is_contiguous}"
            rows = _qkv_rows(name, tensors, config, label, is_contiguous)
            parts = _parts(name, QKV, stored, rows)
        elif f".{FC1}." in name:
            is_interleaved = _flag(config, INTERLEAVED_MLP, default=True)
            orders[FC1] = f"{INTERLEAVED_MLP}={is_interleaved}"
            parts = _parts(name, FC1, stored, _gate_rows(name, tensors, label, is_interleaved))
        elif match := _EXPERT.fullmatch(name):
            parts = dict(_experts(match[1], match[2], stored, config, f"{label}: {name!r}"))
        result |= {name: stored} if parts is None else parts
    if orders:
        log.info(
            "%s has fused matrices, which are split by %s (settings of config.json)",
            label, " and ".join(orders.values()),
        )  # fmt: skip
    return result


def _flag(config: Config, name: str, *, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise StartError(f"config.json has {name} {value!r}, expected true or false")
    return value


def _parts(
    name: str, fused: str, stored: StoredTensor, rows: Mapping[str, slice | np.ndarray[Any, Any]]
) -> Tensors:
    """Return the parts of a tensor of a fused matrix; those of its inputs are shared."""
    is_whole = not stored.shape or stored.shape == (1,) or name.endswith(OF_INPUTS)
    return {
        name.replace(fused, part): stored if is_whole else take_rows(stored, some)
        for part, some in rows.items()
    }


def _fused_rows(name: str, fused: str, tensors: Tensors) -> int:
    """Return the number of rows of the matrix that the tensor `name` belongs to."""
    stem = name[: name.index(fused) + len(fused)]
    stored = tensors.get(f"{stem}.weight") or tensors[name]
    return stored.shape[0] if stored.shape else 0


def _qkv_rows(
    name: str, tensors: Tensors, config: Config, label: str, is_contiguous: bool
) -> dict[str, Any]:
    total, groups = _fused_rows(name, QKV, tensors), _count(config, HEADS)
    output = tensors.get(f"{name[: name.index(QKV)]}self_attn.o_proj.weight")
    queries = output.shape[-1] if output is not None and output.shape else 0
    keys, rest = divmod(total - queries, 2)
    if not groups or not queries or keys < 1 or rest or keys % groups or queries % groups:
        raise StartError(
            f"{label}: tensor {name!r} has {total} rows with {queries} inputs of the output "
            f"matrix, expected those of queries, and of keys and values of "
            f"{groups or 'unknown'} heads (num_key_value_heads)"
        )
    names = [f"self_attn.{part}_proj" for part in "qkv"]
    if is_contiguous:
        ends = (0, queries, queries + keys, total)
        return {part: slice(*ends[i : i + 2]) for i, part in enumerate(names)}
    rows = np.arange(total).reshape(groups, -1)
    each = (queries // groups, (queries + keys) // groups)
    cuts = (rows[:, : each[0]], rows[:, each[0] : each[1]], rows[:, each[1] :])
    return {part: some.reshape(-1) for part, some in zip(names, cuts, strict=True)}


def _gate_rows(name: str, tensors: Tensors, label: str, is_interleaved: bool) -> dict[str, Any]:
    total = _fused_rows(name, FC1, tensors)
    if total < 2 or total % 2:
        raise StartError(f"{label}: tensor {name!r} has {total} rows, expected an even number")
    half = total // 2
    halves = (slice(0, half), slice(half, None))
    gate, up = (slice(0, None, 2), slice(1, None, 2)) if is_interleaved else halves
    return {"gate_proj": gate, "up_proj": up}


def _experts(
    stem: str, number: str, stored: StoredTensor, config: Config, label: str
) -> Iterator[tuple[str, StoredTensor]]:
    """Iterate over the matrices [outputs, inputs] of all experts by name."""
    count = _count(config, EXPERTS)
    is_flat = len(stored.shape) == 2
    if not count or len(stored.shape) not in (2, 3) or stored.shape[0] % count:
        raise StartError(
            f"{label} has shape {list(stored.shape)}, expected the matrices of "
            f"{count or 'unknown'} experts (num_experts)"
        )
    inputs = stored.shape[0] // count if is_flat else stored.shape[1]
    columns = stored.shape[-1]
    if number == "1" and columns % 2:
        raise StartError(f"{label} has {columns} columns, expected an even number")
    half = columns // 2
    halves = {"gate_proj": slice(0, half), "up_proj": slice(half, None)}
    parts = halves if number == "1" else {"down_proj": slice(None)}
    for index in range(count):
        for part, some in parts.items():
            outputs = len(range(*some.indices(columns)))

            def read(index: int = index, some: slice = some) -> Any:
                return stored.bits.reshape(count, inputs, columns)[index, :, some].T

            tensor = DerivedTensor(stored.dtype, (outputs, inputs), [stored], read)
            yield f"{stem}.{index}.{part}.weight", tensor


def _count(config: Config, keys: tuple[str, ...]) -> int:
    """Return the first of the settings `keys` that is an int over 0; 0 if there is none."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), 0)
