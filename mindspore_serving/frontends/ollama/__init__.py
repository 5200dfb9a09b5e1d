"""Ollama's protocol: chats, prompts, embeddings, and what models there are.

Each route reads a body into a struct of `requests`, makes a request of `core.llm_messages` of it,
and writes the events that answer it as lines of JSON.
"""

from starlette.routing import BaseRoute

from mindspore_serving.frontends.ollama import answering, embedding, models
from mindspore_serving.frontends.site import Site


def routes(site: Site) -> list[BaseRoute]:
    return [*answering.routes(site), *embedding.routes(site), *models.routes(site)]
