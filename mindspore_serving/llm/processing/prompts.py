"""The forms in which prompts and parameters may be given to an offline call, made one.

Knows neither tokenizer nor engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeAlias

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.errors import InvalidInputs

Prompt: TypeAlias = str | Sequence[int]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidInputs(
            f"prompts is {prompts!r}, expected a text, a list of token ids, or a list of such"
        )
    found: list[Any] = list(prompts)
    return [found] if found and isinstance(found[0], Integral) else found


def list_params(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidInputs(f"{len(params)} params for {count} prompts, expected one or as many")
    return list(params)


def adapter_place(adapter: str | None, names: Sequence[str]) -> int:
    """The adapter's index among `names`, from 1 on; 0 for None."""
    if adapter is None:
        return 0
    if adapter not in names:
        accepted = f"None or one of {', '.join(names)}" if names else "None: there is none"
        raise InvalidInputs(f"adapter is {adapter!r}, expected {accepted}")
    return names.index(adapter) + 1


@contextmanager
def naming(name: str, count: int) -> Iterator[None]:
    """Say which of several inputs an error is about."""
    try:
        yield
    except InvalidInputs as error:
        if count == 1:
            raise
        raise type(error)(f"{name}: {error}") from None
