"""Cohere's protocol for ranking documents, with the fields of Jina and vLLM."""

from mindspore_serving.frontends.cohere.rerank import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
