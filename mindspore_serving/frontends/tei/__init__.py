"""Text Embeddings Inference's HTTP protocol (TEI): vectors, labels and ranks.

`routes` are paths of its own, and /rerank, which is Cohere's too: the fields of a body decide.
`shared_routes` are paths that TGI has as well; they are meant where no model generates.
"""

from mindspore_serving.frontends.tei.routes import generates_none, routes, shared_routes

__all__ = ["generates_none", "routes", "shared_routes"]
