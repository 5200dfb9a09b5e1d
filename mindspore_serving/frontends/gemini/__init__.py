"""Gemini's protocol: contents, token counts, embeddings, models.

Each route decodes a body to a struct of `requests`, translates it to a request of
`core.llm_messages`, and writes the events of the answer as Gemini's JSON.
"""

from mindspore_serving.frontends.gemini.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
