"""Bodies of TEI's requests and answers.

`model` is an extension: TEI serves a single model.
"""

from typing import Annotated, Literal

import msgspec

from mindspore_serving.core.reading_messages import Side
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import Int

Inputs = str | list[str | Int | list[Int]]
Direction = Literal["Left", "Right", "left", "right"]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Pairs = str | list[str | list[str]]
_MIXED = "expected a text, a pair of texts, or a list of [text] and [text, text]"


class TeiRequest(msgspec.Struct, kw_only=True):
    """Fields of requests with texts."""

    truncate: bool | None = None
    truncation_direction: Direction | None = None
    model: str | None = None

    @property
    def side(self) -> Side:
        """Side at which texts that are too long are truncated, "" to refuse them."""
        if not self.truncate:
            return ""
        return "left" if (self.truncation_direction or "Right").lower() == "left" else "right"


class TeiEmbedRequest(TeiRequest, kw_only=True):
    """Body of /embed."""

    inputs: Inputs
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Count | None = None


class PredictParameters(msgspec.Struct, kw_only=True):
    """Parameters of Hugging Face's inference API.

    A request with them is answered in that API's form: a list of labels for each text, even for
    one.
    """

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    top_k: Count | None = None


class PredictRequest(TeiRequest, kw_only=True):
    """Body of /predict: a text, a pair of texts, or a list of lists of one or two texts."""

    inputs: Pairs
    raw_scores: bool = False
    parameters: PredictParameters | None = None


class TeiRerankRequest(TeiRequest, kw_only=True):
    """Body of /rerank."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False


class Sentences(msgspec.Struct):
    """A sentence, and those to compare it with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TeiRequest, kw_only=True):
    """Parameters of /similarity."""

    prompt_name: str | None = None


class SimilarityRequest(msgspec.Struct, kw_only=True):
    """Body of /similarity."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: str | None = None


class TeiTokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of /tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    model: str | None = None


class TeiPrediction(msgspec.Struct):
    """A label and its score."""

    score: float
    label: str


class TeiRank(msgspec.Struct, omit_defaults=True):
    """Score of a text."""

    index: int
    score: float
    text: str | None = None


class TeiToken(msgspec.Struct):
    """A token and the part [start, stop) of the text that it covers, in characters."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiInfo(msgspec.Struct, kw_only=True):
    """The model and the limits; `model_type` has one key: embedding, classifier or reranker."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    model_type: dict[str, dict[str, object]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool = False
    tokenization_workers: int
    version: str
    sha: str | None = None
    docker_label: str | None = None


def to_rows(inputs: Pairs) -> tuple[list[list[str]], bool]:
    """Return lists of one or two texts, and whether the input was a single text or pair.

    Raises InvalidField.
    """
    if isinstance(inputs, str):
        return [[inputs]], True
    texts = [entry for entry in inputs if isinstance(entry, str)]
    if texts:
        if len(texts) != len(inputs) or len(texts) > 2:
            raise InvalidField("inputs", f"has {len(inputs)} entries, {_MIXED}")
        return [texts], True
    rows = [entry for entry in inputs if isinstance(entry, list)]
    if not rows or not all(1 <= len(row) <= 2 for row in rows):
        raise InvalidField("inputs", f"has no entries, or a list that is too long: {_MIXED}")
    return rows, False
