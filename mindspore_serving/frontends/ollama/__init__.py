"""Ollama's protocol: chats, prompts, embeddings and models.

Each route decodes a body to a struct of `requests`, translates it to a request of
`core.llm_messages`, and writes the events of the answer as lines of JSON.
"""

from mindspore_serving.frontends.ollama.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
