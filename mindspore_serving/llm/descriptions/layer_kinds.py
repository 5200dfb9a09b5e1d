"""Settings of each layer in config.json: window, heads, shared keys, positions, experts.

Plain decisions; knows no tensor.
"""

from typing import TypeAlias

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import Architecture, Config
from mindspore_serving.llm.descriptions.config_types import size

Heads: TypeAlias = tuple[tuple[int, int], ...]
FULL, SLIDING = "full_attention", "sliding_attention"
FEEDING = ("mlp", "moe")  # kinds of layers with only a feed-forward block


def windows(config: Config, num_layers: int, architecture: Architecture) -> tuple[int, ...]:
    """Return how many tokens each layer attends to, 0 for all."""
    window = config.get("sliding_window") or 0
    if not config.get("use_sliding_window", True):
        window = 0
    kinds = config.get("layer_types")
    pattern = config.get("sliding_window_pattern")  # every `pattern`-th layer has no window
    first = config.get("max_window_layers") or 0
    if kinds is not None:
        _check_kinds(kinds, num_layers, architecture)
        return tuple(window if kind == SLIDING else 0 for kind in kinds)
    if isinstance(pattern, str):  # a letter per layer, repeated: L has a window, G none (EXAONE)
        letters = pattern * (num_layers // max(len(pattern), 1) + 1)
        return tuple(window if letter == "L" else 0 for letter in letters[:num_layers])
    if pattern:
        return tuple(window if (i + 1) % pattern else 0 for i in range(num_layers))
    return tuple(window if i >= first else 0 for i in range(num_layers))


def _check_kinds(kinds: list[str], num_layers: int, architecture: Architecture) -> None:
    if len(kinds) != num_layers:
        raise StartError(
            f"config.json has {len(kinds)} layer_types, expected {num_layers}, one per layer"
        )
    feeding = FEEDING if architecture.single else ()
    known = [kind for kind in (FULL, SLIDING, architecture.state, *feeding) if kind]
    for kind in kinds:
        if kind not in known:
            raise StartError(
                f"config.json has layers of {kind!r} in layer_types, expected {' or '.join(known)}"
            )


def heads(config: Config, sizes: tuple[int, ...], common: tuple[int, int]) -> Heads:
    """Return (key-value heads, features of each) of each layer.

    Layers with a window have `common`; the others may have sizes of their own. `sizes` are the
    windows.
    """
    kv_heads, dim = common
    without_window = (
        size(config, "num_global_key_value_heads", default=kv_heads),
        size(config, "global_head_dim", default=dim),
    )
    return tuple(common if window else without_window for window in sizes)


def sources(config: Config, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layer whose keys and values each layer attends to.

    That is the layer itself, except for the last `num_kv_shared_layers`: they use those of the last
    layer before them that has the same window.
    """
    count = len(sizes)
    first = count - (config.get("num_kv_shared_layers") or 0)
    owners = {window: i for i, window in enumerate(sizes[: max(first, 0)])}
    if first < count and not set(sizes[max(first, 0) :]) <= set(owners):
        raise StartError(
            f"config.json has num_kv_shared_layers {count - first} of {count}, expected a layer of "
            "each kind before them, whose keys and values they share"
        )
    return tuple(i if i < first else owners[window] for i, window in enumerate(sizes))


def attending(config: Config, num_layers: int, architecture: Architecture) -> frozenset[int]:
    """Return the layers that have keys and values."""
    kinds = config.get("layer_types")
    if kinds is None or architecture.attends_beside:
        return frozenset(range(num_layers))
    return frozenset(i for i, kind in enumerate(kinds) if kind in (FULL, SLIDING))


def rotated(config: Config, architecture: Architecture, sizes: tuple[int, ...]) -> tuple[bool, ...]:
    """Return whether each layer rotates queries and keys; `sizes` are the windows."""
    if not architecture.rope or architecture.alibi:
        return (False,) * len(sizes)
    flags = config.get("no_rope_layers")  # despite its name, 1 is a layer with positions
    if flags:
        if len(flags) != len(sizes):
            raise StartError(
                f"config.json has {len(flags)} no_rope_layers, expected {len(sizes)}, one per layer"
            )
        return tuple(map(bool, flags))
    step = config.get("no_rope_layer_interval")
    if step:
        return tuple((i + 1) % step != 0 for i in range(len(sizes)))
    if architecture.rotated_windows and config.get("sliding_window"):
        return tuple(map(bool, sizes))
    return (True,) * len(sizes)


def sparse(config: Config, num_layers: int) -> frozenset[int]:
    """Return the layers that are mixtures of experts."""
    layers = config.get("moe_layers")
    if layers is not None:
        return frozenset(layers)
    step = config.get("decoder_sparse_step") or 1
    dense = set(config.get("mlp_only_layers") or ())
    first = config.get("first_k_dense_replace") or 0
    last = config.get("moe_layer_end_index")
    end = num_layers if last is None or last == -1 else last + 1
    return frozenset(i for i in range(first, end) if i not in dense and (i + 1) % step == 0)
