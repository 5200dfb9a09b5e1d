"""OpenAI's protocol: chats, completions, responses, embeddings, models, adapters, tokens.

Each route reads a body into a struct of `requests`, makes a request of `core.llm_messages` of it,
and writes the events that answer it as OpenAI's JSON.
"""

from mindspore_serving.frontends.openai.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
