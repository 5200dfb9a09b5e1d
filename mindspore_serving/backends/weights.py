"""Comparison of the tensors in a checkpoint with those of the network that takes them."""

from collections.abc import Mapping, Sequence

from mindspore_serving import log
from mindspore_serving.errors import StartError

_SHOWN = 5  # max names in an error
Shapes = Mapping[str, tuple[int, ...]]


def match_weights(network: Shapes, checkpoint: Shapes) -> dict[str, str]:
    """Return the name in `checkpoint` of each tensor of `network`.

    All names of a checkpoint may begin with a prefix, as `module.`. The state of an optimizer is
    left out: scalars without a dot in their names, and tensors that are named after weights, as
    `moments.conv.weight`. Raises StartError with the names that are missing, unexpected, or of
    another shape.
    """
    prefix = _prefix(network, checkpoint)
    names = {name: prefix + name for name in network}
    missing = [name for name, known in names.items() if known not in checkpoint]
    spare = [name for name in checkpoint if name not in set(names.values())]
    state = [name for name in spare if _is_state(name, checkpoint[name], network)]
    unexpected = [name for name in spare if name not in set(state)]
    wrong = [
        f"{name} of shape {list(checkpoint[known])}, expected {list(network[name])}"
        for name, known in names.items()
        if known in checkpoint and checkpoint[known] != network[name]
    ]
    problems = (("it lacks", missing), ("it has besides", unexpected), ("it has", wrong))
    texts = [f"{what} {_joined(items)}" for what, items in problems if items]
    if texts:
        raise StartError(f"it does not fit the network: {'; '.join(texts)}")
    if state:
        log.info("%d tensors of an optimizer in the checkpoint are not used", len(state))
    return names


def _prefix(network: Shapes, checkpoint: Shapes) -> str:
    """Return the prefix that all names of the network have in the checkpoint; "" for none."""
    first = next(iter(network), "")
    if first in checkpoint:
        return ""
    prefixes = (name.removesuffix(first) for name in checkpoint if name.endswith(f".{first}"))
    return next((p for p in prefixes if all(p + name in checkpoint for name in network)), "")


def _is_state(name: str, shape: tuple[int, ...], network: Shapes) -> bool:
    """Return whether a tensor is the state of an optimizer."""
    if "." not in name:
        return shape in ((), (1,))
    slot, _, weight = name.partition(".")
    return slot.isidentifier() and network.get(weight) == shape


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
