"""Ollama's protocol: chats, prompts, embeddings, and what models there are.

Each route reads a body into a struct of `requests`, makes a request of `core.llm_messages` of it,
and writes the events that answer it as lines of JSON.
"""

from mindspore_serving.frontends.ollama.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
