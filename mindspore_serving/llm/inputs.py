"""The forms in which prompts and parameters may be given to an offline call, made one."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeAlias

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.engine.request import to_token_ids

Prompt: TypeAlias = str | Sequence[int]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """One prompt, or several, as a list of texts and lists of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidInputs(
            f"prompts is {prompts!r}, expected a text, a list of token ids, or a list of such"
        )
    given: list[Any] = list(prompts)
    if given and isinstance(given[0], Integral):
        given = [given]
    found = []
    for index, prompt in enumerate(given):
        with naming(f"prompts[{index}]", len(given)):
            found.append(prompt if isinstance(prompt, str) else to_token_ids(prompt))
    return found


def list_params(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidInputs(f"{len(params)} params for {count} prompts, expected one or as many")
    return list(params)


@contextmanager
def naming(name: str, count: int) -> Iterator[None]:
    """Name the one of several inputs that an error is about."""
    try:
        yield
    except InvalidInputs as error:
        if count == 1:
            raise
        raise InvalidInputs(f"{name}: {error}") from None
