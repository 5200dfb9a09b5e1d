"""Messages that all roles share: `Hello`, `Ready`, `Failed`, `Beat`, `Leaving` and `Exit`.

They go between a process and its parent, or the server that it joins.  A role adds its own messages
in one module and may add fields to these.  A message is encoded as an array of tag and fields, so
a process of another version of this package may misread it.  Therefore `Hello` carries a
fingerprint of the messages, and its own encoding never changes.
"""

import hashlib
import os
from functools import cache
from types import ModuleType

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages: encoded as an array, not tracked by the garbage collector."""


class Hello(Message, frozen=True, tag=1):
    """The first message of a process.

    Args:
        fingerprint: of the messages of its role, by `fingerprint`.
        package: the directory of its mindspore_serving.
    """

    fingerprint: str
    package: str


class Ready(Message, frozen=True, tag=2):
    """The process has loaded and can work, or has done its work."""


class Failed(Message, frozen=True, tag=3):
    """The process cannot start or cannot continue, for the reason `text`; it is to be killed."""

    text: str


class Beat(Message, frozen=True, tag=5):
    """A sign of life."""


class Leaving(Message, frozen=True, tag=6):
    """The process got SIGTERM: send it no more work, and do not restart it."""


class Exit(Message, frozen=True, tag=4):
    """A command to finish running work, for at most `seconds` (None: no limit), and exit."""

    seconds: float | None = None


def hello(messages: ModuleType) -> Hello:
    """Return the first message of a process whose role's messages are in the module `messages`."""
    return Hello(fingerprint(messages), os.path.dirname(os.path.dirname(__file__)))


def version_mismatch(theirs: Hello, messages: ModuleType, role: str) -> str:
    """Describe how the messages of a process of `role` ("worker") differ from ours; "" if equal."""
    ours = fingerprint(messages)
    if theirs.fingerprint == ours:
        return ""
    return (
        f"the {role}'s mindspore_serving in {theirs.package} has protocol {theirs.fingerprint}, "
        f"the server's {ours}: both must be of one release; if it was just updated, restart the "
        "server"
    )


@cache
def fingerprint(messages: ModuleType) -> str:
    """Return a hash of the tags and fields of all messages of a module, and of the shared ones."""
    kinds = {kind for kind in (*vars(messages).values(), *globals().values()) if _is_message(kind)}
    rows = sorted(
        f"{kind.__name__} {kind.__struct_config__.tag} {kind.__struct_fields__}" for kind in kinds
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:8]


def _is_message(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)
