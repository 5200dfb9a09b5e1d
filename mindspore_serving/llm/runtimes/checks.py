"""Checks that runtimes share when they open a model.  Knows no runtime."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.step import Logits


def check_options(
    config: EngineConfig, runtime: str, accepted: Mapping[str, tuple[object, ...]]
) -> None:
    """Raises StartError naming an option whose value is not among the accepted ones."""
    for option, values in accepted.items():
        value = getattr(config, option)
        if value not in values:
            names = " or ".join(map(repr, values))
            raise StartError(f"{option} is {value!r}, but the {runtime} runtime accepts {names}")


@contextmanager
def first_step() -> Iterator[None]:
    """Around the first step, which loads the weights: a ServingError becomes a StartError."""
    try:
        yield
    except StartError:
        raise
    except ServingError as error:
        raise StartError(f"the weights do not fit config.json, or memory: {error}") from error


def check_logits(logits: Logits, spec: ModelSpec) -> None:
    """Raises StartError if there is not one logit for each token of the vocabulary."""
    if logits.shape[1] != spec.vocab_size:
        raise StartError(
            f"the output matrix has {logits.shape[1]} rows, but config.json has vocab_size "
            f"{spec.vocab_size}"
        )
