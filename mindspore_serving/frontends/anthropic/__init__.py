"""Anthropic's protocol: messages, token counts, models.

Each route decodes a body to a struct of `requests`, translates it to a request of
`core.llm_messages`, and writes the events of the answer as Anthropic's JSON.
"""

from mindspore_serving.frontends.anthropic.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
