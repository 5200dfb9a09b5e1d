"""What every process and the one that started it, or that it joins, say to each other: `Hello`,
`Ready`, `Failed`, `Beat`, `Leaving` and `Exit`.

A role adds messages of its own, in one module, and may add fields to these.  A message is an array
of a tag and the fields, so a process of another version of this package may misread it: `Hello`
says which messages there are, and its own form never changes.
"""

import hashlib
import os
from functools import cache
from types import ModuleType

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base of all: compact, untracked by the garbage collector."""


class Hello(Message, frozen=True, tag=1):
    """The first message of a process: the `fingerprint` of its role's messages, and the directory
    of its package.
    """

    fingerprint: str
    package: str


class Ready(Message, frozen=True, tag=2):
    """The process has done what it was started for, or can begin with it."""


class Failed(Message, frozen=True, tag=3):
    """The process cannot do what it was started for, or cannot go on; it is ended."""

    text: str


class Beat(Message, frozen=True, tag=5):
    """A sign of life."""


class Leaving(Message, frozen=True, tag=6):
    """The process got a signal to end: it is to get nothing more, and is not started again."""


class Exit(Message, frozen=True, tag=4):
    """Finish what runs, for at most `seconds` if that is no None, then leave."""

    seconds: float | None = None


def hello(messages: ModuleType) -> Hello:
    """Return the first message of a process whose role has `messages`."""
    return Hello(fingerprint(messages), os.path.dirname(os.path.dirname(__file__)))


def why_other(theirs: Hello, messages: ModuleType, what: str) -> str:
    """Say why a process, which is `what` ("worker"), cannot be understood; "" if it can."""
    ours = fingerprint(messages)
    if theirs.fingerprint == ours:
        return ""
    return (
        f"the {what}'s mindspore_serving in {theirs.package} has protocol {theirs.fingerprint}, "
        f"the server's {ours}: both must be of one release; if it was just updated, start the "
        "server again"
    )


@cache
def fingerprint(messages: ModuleType) -> str:
    """Return a short text that differs as soon as a message of the module, or one of those above,
    has another tag or other fields.
    """
    kinds = {kind for kind in (*vars(messages).values(), *globals().values()) if _is_message(kind)}
    rows = sorted(
        f"{kind.__name__} {kind.__struct_config__.tag} {kind.__struct_fields__}" for kind in kinds
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:8]


def _is_message(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)
