"""Messages between node and master, in addition to `process.vocabulary`, and the preamble.

A node keeps one connection to the master, and opens another for each worker that it starts:

    node                               master
    preamble, Hello, JoinCluster  ->
                                  <-   Ready (or Failed, and the connection ends)
    Beat, Leaving                 <->  Start, Beat

    preamble, Hello, Attach       ->
    WorkerStarted or NotStarted   ->
    Data, Report, Moving, Exited  ->
                                  <-   the worker's stream, as raw bytes
"""

import hashlib
import re
import struct
from typing import TypeAlias

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.ipc.status import Running
from mindspore_serving.process.vocabulary import Beat, Failed, Leaving, Message, Ready

_MAGIC = b"MSNODE\0\2"  # the last byte is the version of the preamble
_PREAMBLE = struct.Struct(f"{len(_MAGIC)}s32s")
PREAMBLE_SIZE = _PREAMBLE.size
MAX_MESSAGE = 1 << 16  # bytes of any message but `Data`
MAX_DATA = 1 << 18  # bytes in a `Data`
MAX_DATA_MESSAGE = MAX_DATA + 64  # with the encoding of the message
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
DEVICE_TYPES = ("none", "ascend", "gpu", "cpu")
MAX_SLOTS, MAX_LABELS, MAX_LABEL = 1024, 64, 128


class JoinCluster(Message, frozen=True, tag=11):
    """The first message of a node after `Hello`: its name and resources."""

    version: str  # of the package
    name: str
    slots: int  # workers that it runs at a time
    device_type: str  # one of DEVICE_TYPES; "none": workers detect it
    device_ids: list[int]  # empty: a worker may have any
    labels: dict[str, str]


class Attach(Message, frozen=True, tag=12):
    """The first message after `Hello` on the connection of the worker with the id of `Start`."""

    id: str


class Start(Message, frozen=True, tag=17):
    """A command to start a worker and attach it as `id`; `name` is its title in messages.

    With `hosts_ranks` it is a host of ranks of a model whose worker is on another machine.
    """

    id: str
    name: str
    log_name: str
    device_id: int | None
    hosts_ranks: bool = False


class WorkerStarted(Message, frozen=True, tag=18):
    """The worker's process runs; its stream follows."""

    pid: int


class NotStarted(Message, frozen=True, tag=19):
    """The worker's process could not be started; with `is_shortage` a retry may succeed."""

    text: str
    is_shortage: bool


class Report(Message, frozen=True, tag=20):
    """The status of the worker, from its shared memory.

    `since` of `running` is an age in seconds, as clocks of two machines are not comparable.
    """

    num_beats: int
    running: list[Running]
    loaded: float = 0.0  # fraction of the servable
    numbers: list[int] | None = None  # resources of its process, and its batches


class Moving(Message, frozen=True, tag=21):
    """The worker was told to finish because its node leaves: start its replacement elsewhere."""


class Exited(Message, frozen=True, tag=22):
    """The worker has ended, with exit `status`; `tail` is its last output."""

    status: int
    tail: str


class Data(Message, frozen=True, tag=23):
    """A chunk of the worker's stream, at most MAX_DATA bytes."""

    content: bytes


FirstMessage: TypeAlias = JoinCluster | Attach
FromNode: TypeAlias = Beat | Leaving
ToNode: TypeAlias = Ready | Failed | Start | Beat
FromWorker: TypeAlias = WorkerStarted | NotStarted | Data | Report | Moving | Exited


def preamble(token: str) -> bytes:
    """Return the first bytes that a node sends; `token` is "" for none."""
    return _PREAMBLE.pack(_MAGIC, digest(token))


def parse_preamble(data: bytes) -> bytes:
    """Return the digest of the token in a preamble.  Raises ValueError for other data."""
    magic, token_digest = _PREAMBLE.unpack(data)
    if magic != _MAGIC:
        raise ValueError("it is no node of this version of MindSpore Serving")
    return bytes(token_digest)


def digest(token: str) -> bytes:
    """Return the SHA-256 of a token, 32 bytes."""
    return hashlib.sha256(token.encode()).digest()


def check_node(offer: JoinCluster) -> None:
    """Check the resources that a node offers.  Raises InvalidInputs naming the wrong field."""
    if not _NAME.fullmatch(offer.name):
        text = "1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        raise InvalidInputs(f"the node's name is {offer.name[:80]!r}, expected {text}")
    if not 1 <= offer.slots <= MAX_SLOTS:
        raise InvalidInputs(f"slots is {offer.slots}, expected 1 to {MAX_SLOTS}")
    if offer.device_type not in DEVICE_TYPES:
        raise InvalidInputs(f"device_type is {offer.device_type[:80]!r}, expected {DEVICE_TYPES}")
    ids = offer.device_ids
    if len(set(ids)) != len(ids) or any(not 0 <= device < MAX_SLOTS for device in ids):
        raise InvalidInputs(f"device_ids are {ids[:20]}, expected different numbers from 0 on")
    labels = offer.labels
    texts = [*labels, *labels.values()]
    if len(labels) > MAX_LABELS or any(not 0 < len(text) <= MAX_LABEL for text in texts):
        text = f"at most {MAX_LABELS}, with names and values of 1 to {MAX_LABEL} characters"
        raise InvalidInputs(f"the labels are invalid, expected {text}")


def check_start(start: Start, offer: JoinCluster) -> None:
    """Check a command of the master.  Raises InvalidInputs if it exceeds the node's `offer`."""
    if not _LOG_NAME.fullmatch(start.log_name) or not start.name.isprintable():
        raise InvalidInputs("the name of the worker or of its log is invalid")
    if offer.device_ids and start.device_id not in (None, *offer.device_ids):
        raise InvalidInputs(f"device {start.device_id} was not offered")
