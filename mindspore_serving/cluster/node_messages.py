"""What a node and the master say beside `process.vocabulary`, and how a connection begins.

A node keeps one connection to the master, and opens another for each worker that it starts.  Both
begin with a preamble of fixed length and `Hello`; the next message says which it is.  All else are
messages, but what goes to a worker: that is its stream as it is.  The answer to `JoinCluster` is
`Ready`; `Failed` says why the other side is not served, and the connection ends.
"""

import hashlib
import re
import struct
from typing import TypeAlias

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.ipc.status import Running
from mindspore_serving.process.vocabulary import Beat, Failed, Leaving, Message, Ready

_MAGIC = b"MSNODE\0\2"  # the last byte is the version of this beginning
_PREAMBLE = struct.Struct(f"{len(_MAGIC)}s32s")
PREAMBLE_SIZE = _PREAMBLE.size
MOST_MESSAGE = 1 << 16  # bytes of any message but data
MOST_DATA = 1 << 18
MOST_DATA_MESSAGE = MOST_DATA + 64  # the rest is for the message around
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
DEVICE_TYPES = ("none", "ascend", "gpu", "cpu")
MOST_SLOTS, MOST_LABELS, MOST_LABEL = 1024, 64, 128


class JoinCluster(Message, frozen=True, tag=11):
    """The first message of a node after `Hello`: who it is, and what it offers."""

    version: str  # of the package
    name: str
    slots: int  # workers that it runs at once
    device_type: str  # one of DEVICE_TYPES; "none": the workers find out
    device_ids: list[int]  # none: a worker may have any
    labels: dict[str, str]


class Attach(Message, frozen=True, tag=12):
    """The first message after `Hello` of a connection for the worker that was asked for as `id`."""

    id: str


class Start(Message, frozen=True, tag=17):
    """Start a worker, and attach it as `id`."""

    id: str
    name: str  # for people
    log_name: str
    device_id: int | None


class WorkerStarted(Message, frozen=True, tag=18):
    """The worker's process runs; its stream follows."""

    pid: int


class NotStarted(Message, frozen=True, tag=19):
    """Why there is no process; with `is_shortage` there may be one later."""

    text: str
    is_shortage: bool


class Report(Message, frozen=True, tag=20):
    """What the worker says of itself in shared memory.  `since` of what runs is an age here: clocks
    of two machines have nothing in common.
    """

    num_beats: int
    running: list[Running]
    loaded: float = 0.0  # share of the servable
    numbers: list[int] | None = None  # what its process uses, and its batches


class Moving(Message, frozen=True, tag=21):
    """The worker is asked to leave because its node does: it is to run elsewhere."""


class Exited(Message, frozen=True, tag=22):
    """The worker has ended; `tail` is the end of its log."""

    status: int
    tail: str


class Data(Message, frozen=True, tag=23):
    """A piece of what the worker sends, at most MOST_DATA bytes."""

    content: bytes


FirstMessage: TypeAlias = JoinCluster | Attach
FromNode: TypeAlias = Beat | Leaving
ToNode: TypeAlias = Ready | Failed | Start | Beat
FromWorker: TypeAlias = WorkerStarted | NotStarted | Data | Report | Moving | Exited


def preamble(token: str) -> bytes:
    """What a node sends first.  "" is no token."""
    return _PREAMBLE.pack(_MAGIC, digest(token))


def parse_preamble(data: bytes) -> bytes:
    """Return the digest of the token.  Raises ValueError."""
    magic, found = _PREAMBLE.unpack(data)
    if magic != _MAGIC:
        raise ValueError("it is no node of this version of MindSpore Serving")
    return bytes(found)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def check_offer(offer: JoinCluster) -> None:
    """Raises InvalidInputs naming what is wrong."""
    if not _NAME.fullmatch(offer.name):
        text = "1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        raise InvalidInputs(f"the node's name is {offer.name[:80]!r}, expected {text}")
    if not 1 <= offer.slots <= MOST_SLOTS:
        raise InvalidInputs(f"slots is {offer.slots}, expected 1 to {MOST_SLOTS}")
    if offer.device_type not in DEVICE_TYPES:
        raise InvalidInputs(f"device_type is {offer.device_type[:80]!r}, expected {DEVICE_TYPES}")
    ids = offer.device_ids
    if len(set(ids)) != len(ids) or any(not 0 <= one < MOST_SLOTS for one in ids):
        raise InvalidInputs(f"device_ids are {ids[:20]}, expected different numbers from 0 on")
    labels = offer.labels
    texts = [*labels, *labels.values()]
    if len(labels) > MOST_LABELS or any(not 0 < len(one) <= MOST_LABEL for one in texts):
        text = f"at most {MOST_LABELS}, with names and values of 1 to {MOST_LABEL} characters"
        raise InvalidInputs(f"the labels cannot be used, expected {text}")


def check_start(start: Start, offer: JoinCluster) -> None:
    """Raises InvalidInputs if a node with this `offer` does not do that."""
    if not _LOG_NAME.fullmatch(start.log_name) or not start.name.isprintable():
        raise InvalidInputs("the name of the worker or of its log cannot be used")
    if offer.device_ids and start.device_id not in (None, *offer.device_ids):
        raise InvalidInputs(f"device {start.device_id} was not offered")
