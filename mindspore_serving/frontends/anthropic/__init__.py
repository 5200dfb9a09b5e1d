"""Anthropic's protocol: messages, the count of their tokens, models.

Each route reads a body into a struct of `requests`, makes a request of `core.llm_messages` of it,
and writes the events that answer it as Anthropic's JSON.
"""

from starlette.routing import BaseRoute

from mindspore_serving.frontends.anthropic import answering, models
from mindspore_serving.frontends.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """The routes of all of it; those of models answer only clients of Anthropic's."""
    return [*answering.routes(site), *models.routes(site)]
