"""Messages between the master and a host of ranks, in addition to `process.vocabulary`."""

from typing import TypeAlias

from mindspore_serving.core.placement import GroupCredentials
from mindspore_serving.process.vocabulary import Failed, Hello, Message


class OpenHost(Message, frozen=True, tag=10):
    """A command to listen for the other machines of a group, which have these credentials."""

    credentials: GroupCredentials


class HostOpen(Message, frozen=True, tag=11):
    """The host listens at HOST:PORT; `speed` is the bytes a second that it reads of weights."""

    address: str
    speed: float


FromHost: TypeAlias = Hello | HostOpen | Failed
