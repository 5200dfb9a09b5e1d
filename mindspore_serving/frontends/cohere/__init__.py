"""Cohere's protocol for ranking documents, with the fields that Jina and vLLM have as well."""

from mindspore_serving.frontends.cohere.rerank import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
