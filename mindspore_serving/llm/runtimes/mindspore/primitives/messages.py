"""Messages of processes that run the self-test of primitives, or check a model."""

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


class ModelCompared(Message, frozen=True, tag=12):
    """The logits of a small model against numpy; `error` and `tolerance` as in `CaseChecked`.

    Of `count` tokens `equal` are numpy's likeliest.
    """

    error: float
    tolerance: float
    count: int
    equal: int


class StreamsMeasured(Message, frozen=True, tag=13):
    """The speed of decoding `streams` sequences together.

    `share` is the speed of reading weights, as a part of that of adding a number to a tensor.
    """

    streams: int
    tokens_per_second: float
    share: float


class AllReduceMeasured(Message, frozen=True, tag=14):
    """The all-reduce of `num_bytes` of each rank; `is_right` if its sums are."""

    num_bytes: int
    seconds: float
    is_right: bool


FromSelfTest: TypeAlias = DeviceOpened | CaseChecked | Failed | Ready
FromModelCheck: TypeAlias = ModelCompared | StreamsMeasured | Failed | Ready
FromAllReduce: TypeAlias = AllReduceMeasured | Failed | Ready
