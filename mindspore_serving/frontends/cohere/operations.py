"""What the routes of Cohere's protocol take and answer."""

import msgspec

from mindspore_serving.frontends.cohere.rerank import V1, V2, Ranking, RerankRequest
from mindspore_serving.frontends.operation import JSON, Body, Operation, Section

ABOUT = "Cohere's protocol for ranking, with the fields of Jina's and vLLM's, for rerankers."


class Error(msgspec.Struct):
    message: str


def section() -> Section:
    rows = ((V2, "Rank documents by a query"), (V1, "The same, with the documents' texts"))
    operations = (
        Operation("POST", path, summary, {JSON: Ranking}, Body(RerankRequest))
        for path, summary in rows
    )
    return Section("Cohere", ABOUT, {JSON: Error}, tuple(operations))
