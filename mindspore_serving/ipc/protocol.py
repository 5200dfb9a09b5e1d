"""Which messages a copy of this package understands, as a short text to compare."""

import hashlib
from functools import cache

from mindspore_serving.ipc import messages


@cache
def protocol() -> str:
    """Differs as soon as a message has another tag or other fields."""
    kinds = [kind for kind in vars(messages).values() if _is_message(kind)]
    rows = sorted(
        f"{kind.__name__} {kind.__struct_config__.tag} {kind.__struct_fields__}" for kind in kinds
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:8]


def _is_message(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, messages.Message)
