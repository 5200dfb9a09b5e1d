"""Messages of a process that downloads or removes a model."""

from typing import TypeAlias

from mindspore_serving.process.vocabulary import Failed, Message


class Planned(Message, frozen=True, tag=10):
    """The model was found.

    `name` is its pinned reference, `size` the bytes of its files; `is_new` if no revision of it was
    downloaded before.
    """

    name: str
    revision: str
    size: int
    licence: str
    is_new: bool


class Received(Message, frozen=True, tag=11):
    """Bytes that are on this machine so far, those of earlier downloads with them."""

    count: int


class Downloaded(Message, frozen=True, tag=12):
    """The download is complete, or the removal; `path` is what to serve."""

    path: str = ""


class DownloadRefused(Message, frozen=True, tag=13):
    """The error of the model's source, for the client."""

    code: int
    text: str


FromDownload: TypeAlias = Planned | Received | Downloaded | DownloadRefused | Failed
