"""Messages between the machines of a group of ranks, in addition to `process.vocabulary`.

The machine of rank 0 dials the others, and of two others the later one dials:

    machine 0                          machine n
    Hello, Greeting, OpenGroup    ->
                                  <-   Opened, or Failed
    the first frame of rank 0     ->
                                  <-   Ready, or Failed
    frames of rank 0, notices     <->  notices

    machine n                          machine m, before n
    Hello, Greeting               ->
    notices                       <->  notices
"""

from typing import TypeAlias

from mindspore_serving.process.vocabulary import Failed, Hello, Message, Ready


class Greeting(Message, frozen=True, tag=10):
    """Number of the machine that has dialled, in its group."""

    machine: int


class OpenGroup(Message, frozen=True, tag=11):
    """A command to start the ranks of `machine`.

    `counts` has the number of ranks of each machine, `addresses` HOST:PORT of each but the first,
    `names` their names.  `root` is the directory of servables on the first machine.
    """

    machine: int
    counts: tuple[int, ...]
    addresses: tuple[str, ...]
    names: tuple[str, ...]
    root: str


class Opened(Message, frozen=True, tag=13):
    """The machine is connected with all others, and takes notices."""


class Beats(Message, frozen=True, tag=12):
    """Heartbeats of the ranks of a machine, in their order; also its sign of life."""

    counts: list[int]


FromMachine: TypeAlias = Hello | Greeting | OpenGroup | Opened | Ready | Failed | Beats
