"""Anthropic's protocol: messages, the count of their tokens, models.

Each route reads a body into a struct of `requests`, makes a request of `core.llm_messages` of it,
and writes the events that answer it as Anthropic's JSON.
"""

from mindspore_serving.frontends.anthropic.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
