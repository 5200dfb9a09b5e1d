"""What the routes of Text Embeddings Inference take and answer."""

from mindspore_serving.frontends.cohere.operations import Error as CohereError
from mindspore_serving.frontends.cohere.rerank import Ranking
from mindspore_serving.frontends.cohere.rerank import RerankRequest as CohereRequest
from mindspore_serving.frontends.operation import JSON, STRING, TEXT, Body, Operation, Section
from mindspore_serving.frontends.tei.requests import (
    EmbedRequest,
    Prediction,
    PredictRequest,
    Rank,
    RerankRequest,
    SimilarityRequest,
)
from mindspore_serving.frontends.tgi.operations import Error

ABOUT = (
    "Text Embeddings Inference: the routes of Hugging Face's server, for models that embed, rank "
    "or classify. Where no model generates, /, /info and /tokenize answer in its form too."
)


def section() -> Section:
    return Section("TEI", ABOUT, {JSON: Error, TEXT: STRING}, _operations())


def _operations() -> tuple[Operation, ...]:
    vectors, labels = {JSON: list[list[float]]}, {JSON: (list[Prediction], list[list[Prediction]])}
    return (
        Operation("POST", "/embed", "A vector for each text", vectors, Body(EmbedRequest)),
        Operation("POST", "/embed_sparse", "424: no model gives sparse vectors", {}),
        Operation("POST", "/predict", "The labels of texts or pairs", labels, Body(PredictRequest)),
        Operation(
            "POST",
            "/similarity",
            "How alike sentences are to another",
            {JSON: list[float]},
            Body(SimilarityRequest),
        ),
        Operation(
            "POST",
            "/rerank",
            "Rank texts by a query; of documents in Cohere's form",
            {JSON: (list[Rank], Ranking)},
            Body((RerankRequest, CohereRequest)),
            others={"4XX": {JSON: (Error, CohereError), TEXT: STRING}},
        ),
    )
