"""The self-test of the primitives: each against its golden, in processes with a deadline.

A primitive that crashes or hangs its process is a row, and another process continues behind it.
Imports no MindSpore, so that the caller can open the device afterwards.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.mindspore import cluster
from mindspore_serving.llm.runtimes.mindspore.primitives.cases import cases
from mindspore_serving.llm.runtimes.mindspore.primitives.messages import (
    AllReduceMeasured,
    CaseChecked,
    DeviceOpened,
    FromAllReduce,
    FromModelCheck,
    FromSelfTest,
    ModelCompared,
    StreamsMeasured,
)
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program, exit_text
from mindspore_serving.process.vocabulary import Failed, Ready

MODEL_MODULE = "mindspore_serving.llm.runtimes.mindspore.model_check_process"
MODULE = "mindspore_serving.llm.runtimes.mindspore.primitives.selftest_process"
ALL_REDUCE_MODULE = "mindspore_serving.llm.runtimes.mindspore.all_reduce_process"
ASCEND, COMPOSED = "ascend", "composed"  # fillings
DEADLINE = 120.0  # seconds to open a device, and to compile and run a primitive
# The attention kernels for packed sequences are those that these names do not replace.
KERNEL_VARIABLES = {"MS_INTERNAL_DISABLE_CUSTOM_KERNEL_LIST": "FlashAttentionScore,PagedAttention"}
CASE_NAMES = tuple(case.name for case in cases("float32"))


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A device and a filling to test; `module` is the program of the processes.

    `names` are the primitives, all of CASE_NAMES by default.
    """

    device: str = "ascend"
    filling: str = ASCEND
    deadline: float = DEADLINE
    module: str = MODULE
    names: tuple[str, ...] = CASE_NAMES

    def run(self, on_opened: Callable[[DeviceOpened], None]) -> Iterator[CaseChecked]:
        """Iterate over the results of all cases, as they come.

        `on_opened` is called for each process.  Raises StartError if the device cannot be opened.
        """
        remaining = [name for name in CASE_NAMES if name in self.names]
        while remaining:
            for checked in self._run_process(tuple(remaining), on_opened):
                yield checked
                remaining.pop(0)
                if checked.error == float("inf"):  # other cases of that primitive are left out
                    remaining = [name for name in remaining if name != checked.name]

    def _run_process(
        self, names: Sequence[str], on_opened: Callable[[DeviceOpened], None]
    ) -> Iterator[CaseChecked]:
        """Iterate over results until the process ends; if it ends early, that is the last one."""
        distinct = ",".join(dict.fromkeys(names))
        words = ["--device", self.device, "--filling", self.filling, "--names", distinct]
        child = Child(Program(self.module, words, (), KERNEL_VARIABLES, channel=socket.SOCK_STREAM))
        with closing(child), closing(child.stream):
            channel = BlockingChannel[FromSelfTest](child.stream, FromSelfTest, self.deadline)
            opening = self._receive(channel, child)
            if not isinstance(opening, DeviceOpened):
                raise StartError(f"the device {self.device} cannot be opened: {opening}")
            on_opened(opening)
            for name in names:
                message = self._receive(channel, child)
                if not isinstance(message, CaseChecked):
                    message = CaseChecked(name, float("inf"), 0.0, self.deadline, str(message))
                yield message
                if message.error == float("inf"):
                    return

    def _receive(
        self, channel: BlockingChannel[FromSelfTest], child: Child
    ) -> DeviceOpened | CaseChecked | str:
        """Return the next message, or why there is none."""
        try:
            message = channel.receive_next()
            if isinstance(message, Failed):
                return message.text
            return message if isinstance(message, DeviceOpened | CaseChecked) else "no result"
        except TimeoutError:
            return f"no result within {self.deadline:g} s"
        except (EOFError, OSError):
            return f"the process {exit_text(child.join(self.deadline))}"


def check_model(
    device: str, composed: str, deadline: float = DEADLINE, module: str = MODEL_MODULE
) -> Iterator[ModelCompared | StreamsMeasured]:
    """Iterate over the comparison of a small model with numpy and its speed, from a process.

    Raises StartError if it crashes, hangs for `deadline` seconds or cannot be opened.
    """
    words = ["--device", device, "--composed", composed]
    child = Child(Program(module, words, (), KERNEL_VARIABLES, channel=socket.SOCK_STREAM))
    with closing(child), closing(child.stream):
        channel = BlockingChannel[FromModelCheck](child.stream, FromModelCheck, deadline)
        yield from _measured(channel, child, deadline)


def check_all_reduce(
    device: str, num_ranks: int, deadline: float = DEADLINE, module: str = ALL_REDUCE_MODULE
) -> Iterator[AllReduceMeasured]:
    """Iterate over all-reduces of growing size by `num_ranks` devices, a process for each.

    Raises StartError as `check_model`.
    """
    port = cluster.find_port()
    with ExitStack() as ending:
        ending.enter_context(closing(cluster.start_scheduler(num_ranks, port)))
        channels = []
        for rank in range(num_ranks):
            variables = cluster.cluster_variables(rank, num_ranks, port, rank)
            words = ["--device", device, "--rank", str(rank), "--size", str(num_ranks)]
            child = Child(Program(module, words, (), variables, channel=socket.SOCK_STREAM))
            ending.enter_context(closing(child))
            ending.enter_context(closing(child.stream))
            channel = BlockingChannel[FromAllReduce](child.stream, FromAllReduce, deadline)
            channels.append((channel, child))
        yield from _measured(*channels[0], deadline)


def _measured(channel: BlockingChannel[Any], child: Child, deadline: float) -> Iterator[Any]:
    """Iterate over the messages of `child` until it is ready.  Raises StartError."""
    while True:
        try:
            message = channel.receive_next()
        except TimeoutError:
            raise StartError(f"no result within {deadline:g} s") from None
        except (EOFError, OSError):
            raise StartError(f"the process {exit_text(child.join(deadline))}") from None
        if isinstance(message, Failed):
            raise StartError(message.text)
        if isinstance(message, Ready):
            return
        yield message
