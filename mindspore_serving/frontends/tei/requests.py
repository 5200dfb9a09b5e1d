"""The bodies that clients of Text Embeddings Inference send.  `model` chooses one of several, which
their server does not have.
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
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    model: str | None = None

    @property
    def side(self) -> Side:
        if not self.truncate:
            return ""
        return "left" if (self.truncation_direction or "Right").lower() == "left" else "right"


class TeiEmbedRequest(TeiRequest, kw_only=True):
    """The body of /embed."""

    inputs: Inputs
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Count | None = None


class PredictParameters(msgspec.Struct, kw_only=True):
    """Those of Hugging Face's own interface, by whose form requests that have them are answered:
    a list of labels for each text, though there is one.
    """

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    top_k: Count | None = None


class PredictRequest(TeiRequest, kw_only=True):
    """The body of /predict: a text, a pair of them, or a list of lists of one or two."""

    inputs: Pairs
    raw_scores: bool = False
    parameters: PredictParameters | None = None


class TeiRerankRequest(TeiRequest, kw_only=True):
    """The body of /rerank."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False


class Sentences(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TeiRequest, kw_only=True):
    prompt_name: str | None = None


class SimilarityRequest(msgspec.Struct, kw_only=True):
    """The body of /similarity."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: str | None = None


class TeiTokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of /tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    model: str | None = None


class TeiPrediction(msgspec.Struct):
    score: float
    label: str


class TeiRank(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    text: str | None = None


class TeiToken(msgspec.Struct):
    """`start` and `stop` are places in the text, in characters."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiInfo(msgspec.Struct, kw_only=True):
    """`model_type` has one key: embedding, classifier or reranker."""

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
    """Lists of one or two texts, and whether there is only one of them.  Raises InvalidField."""
    if isinstance(inputs, str):
        return [[inputs]], True
    texts = [one for one in inputs if isinstance(one, str)]
    if texts:
        if len(texts) != len(inputs) or len(texts) > 2:
            raise InvalidField("inputs", f"has {len(inputs)} entries, {_MIXED}")
        return [texts], True
    rows = [one for one in inputs if isinstance(one, list)]
    if not rows or not all(1 <= len(row) <= 2 for row in rows):
        raise InvalidField("inputs", f"has no entry, or one that is too long: {_MIXED}")
    return rows, False
