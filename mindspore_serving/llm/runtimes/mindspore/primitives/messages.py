"""Messages of a process that runs the self-test of the primitives."""

from typing import TypeAlias

from mindspore_serving.process.vocabulary import Failed, Message, Ready


class DeviceOpened(Message, frozen=True, tag=10):
    """The device computes; `dtype` is that of models on it."""

    soc: str
    mindspore: str
    dtype: str


class CaseChecked(Message, frozen=True, tag=11):
    """The result of one case, in the order of the names that were given.

    `error` is the largest difference, as a part of the largest number; `problem` is "" where the
    primitive equals its golden.
    """

    name: str
    error: float
    tolerance: float
    seconds: float
    problem: str


FromSelfTest: TypeAlias = DeviceOpened | CaseChecked | Failed | Ready
