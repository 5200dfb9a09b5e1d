"""Rows of the table of options: which engines and runtimes take each."""

from collections.abc import Collection
from typing import Any, TypeVar

from mindspore_serving.core.default_sampling import SERVER_SAMPLING
from mindspore_serving.core.params import param
from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.llm.catalog import ENCODER_RUNTIMES, ENGINES, RUNTIMES, TRANSFORMERS

ENCODERS = "encoders"
_ALL = (*RUNTIMES, TRANSFORMERS)

T = TypeVar("T")


def option(
    default: T,
    meaning: str,
    *,
    engines: Collection[str] = (),
    runtimes: Collection[str] = _ALL,
    has_encoders: bool = True,
    **accepted: Any,
) -> T:
    """Return a row of the table.

    Beside ours, `engines` take the option as well; of ours the `runtimes` do, and models that only
    embed if it `has_encoders`.  `accepted` are arguments of `param`.
    """
    without = {*ENGINES, *_ALL} - {*engines, *runtimes}
    if not (has_encoders and {*ENCODER_RUNTIMES, TRANSFORMERS} & {*runtimes}):
        without.add(ENCODERS)
    return param(default, meaning, **{**accepted, **dict.fromkeys(without)})


def sampling(name: str, otherwise: str = "", engines: Collection[str] = ENGINES) -> Any:
    """Return the row for the default of sampling parameter `name`, which has its range."""
    row = SAMPLING[name]
    otherwise = otherwise or f"the model's, or else {SERVER_SAMPLING.get(name, row.default):g}"
    meaning = f"`{name}` of requests that have none; None: {otherwise}"
    low: dict[str, Any] = {"over" if row.is_open else "at_least": row.low}
    return option(None, meaning, engines=engines, has_encoders=False, at_most=row.high, **low)
