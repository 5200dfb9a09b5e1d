"""Scores of texts: finds the model and runs it. Knows no protocol's answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from mindspore_serving.core.reading_messages import Score, Scored
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.models import LanguageModels, ServedModel
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.request_options import request_options_of

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of shape [texts, labels] each.

    `probabilities` are `logits` after the activation that the model's directory names.
    """

    logits: Numbers
    probabilities: Numbers
    num_tokens: int


def find_scorer(models: LanguageModels, name: str | None, *, ranks: bool = True) -> ServedModel:
    """Return the model `name`.

    With `ranks`, it must have a single output: how well two texts fit.  Raises NotFound, or
    InvalidField if the model is of another kind.
    """
    model = models.find(name, purpose="rank" if ranks else "score")
    if not model.can("score"):
        text = f"model {model.name!r} cannot score texts: it is neither a classifier nor a reranker"
        raise InvalidField("model", text=text)
    labels = model.card.labels
    if ranks and len(labels) != 1:
        text = f"model {model.name!r} has {len(labels)} labels, expected a reranker, which has one"
        raise InvalidField("model", text=text)
    return model


async def score(http: Request, model: ServedModel, request: Score) -> Scores:
    """Run the model; cancelled when the client disconnects.

    Raises RequestRefused, or another ServingError.
    """
    scored = await while_connected(http, model.call(request, Scored, request_options_of(http)))
    logits, probabilities = (
        np.frombuffer(data, "<f4").reshape(-1, scored.size)
        for data in (scored.logits, scored.scores)
    )
    return Scores(logits, probabilities, sum(scored.num_prompt_tokens))


def best_first(scores: Sequence[float] | Numbers) -> list[int]:
    """Return the indices of `scores`, largest score first; ties keep their order."""
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order
