"""The messages of a fork server, and of its children that do jobs: tagged structs, by direction."""

from typing import TypeAlias

from mindspore_serving.process.vocabulary import Failed, Hello, Message, Ready


class RoleSetup(Message, frozen=True, tag=10):
    """The first message to a fork server: what its module loads, in the form of that module."""

    content: bytes


class Fork(Message, frozen=True, tag=11):
    """Asks for a child.

    Args:
        role: one of those that the fork server has loaded.
        memory: bytes that the child may take in addition to what was loaded.
        nice: is added to the child's niceness: the higher, the less CPU it gets on a busy machine.
    """

    role: str
    memory: int
    nice: int = 0


class Forked(Message, frozen=True, tag=12):
    """A child was forked.  Its pidfd and the parent's end of its stream come with the message."""


class JobRequest(Message, frozen=True, tag=13):
    """A job for a child."""

    content: bytes


class JobAnswer(Message, frozen=True, tag=14):
    """The answer of a child to a job; `is_last` if the child exits after it."""

    content: bytes
    is_last: bool


ToForkServer: TypeAlias = RoleSetup | Fork
FromForkServer: TypeAlias = Hello | Ready | Failed | Forked
