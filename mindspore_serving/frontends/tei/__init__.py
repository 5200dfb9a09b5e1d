"""HTTP protocol of Text Embeddings Inference (TEI): vectors, labels and ranks."""

from mindspore_serving.frontends.tei.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
