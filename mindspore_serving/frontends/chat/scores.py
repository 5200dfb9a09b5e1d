"""The scores of texts: the model that gives them, and its answer.  Knows no protocol's answers."""

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
    """[texts, labels] each; `probabilities` are what the model's directory makes of `logits`."""

    logits: Numbers
    probabilities: Numbers
    num_tokens: int


def find_scorer(models: LanguageModels, name: str | None, *, ranks: bool = True) -> ServedModel:
    """The model `name`; if it `ranks`, one whose only output is how well two texts fit.  Raises
    NotFound, or InvalidField if it is of another kind.
    """
    model = models.find(name, purpose="rank" if ranks else "score")
    if not model.can("score"):
        text = f"the model {model.name} is no classifier and no reranker, so it scores no texts"
        raise InvalidField("model", text=text)
    labels = model.card.labels
    if ranks and len(labels) != 1:
        text = f"the model {model.name} has {len(labels)} labels, expected one of one to rank by"
        raise InvalidField("model", text=text)
    return model


async def score(http: Request, model: ServedModel, request: Score) -> Scores:
    """Raises RequestRefused, or another ServingError; cancelled when the client leaves."""
    found = await while_connected(http, model.call(request, Scored, request_options_of(http)))
    logits, probabilities = (
        np.frombuffer(one, "<f4").reshape(-1, found.size) for one in (found.logits, found.scores)
    )
    return Scores(logits, probabilities, sum(found.num_prompt_tokens))


def best_first(scores: Sequence[float] | Numbers) -> list[int]:
    """The places of `scores`, the largest first; of equals the first."""
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order
