"""OpenAI's protocol: chats, completions, responses, embeddings, scores, models, tokens.

Each route reads a body into a struct of `requests`, makes a request of `core.llm_messages` of it,
and writes the events that answer it as OpenAI's JSON.  Nothing here knows workers or engines.
"""

from starlette.routing import BaseRoute

from mindspore_serving.frontends.openai import (
    adapters,
    chat,
    completions,
    embeddings,
    models,
    responses,
    scores,
    tokens,
)
from mindspore_serving.frontends.openai.endpoint import post
from mindspore_serving.frontends.openai.fields import CHAT, COMPLETIONS
from mindspore_serving.frontends.openai.requests import ChatRequest, CompletionRequest
from mindspore_serving.frontends.site import Site


def routes(site: Site) -> list[BaseRoute]:
    return [
        post(site, "/v1/chat/completions", ChatRequest, chat.answer, CHAT.ignored),
        post(
            site,
            "/v1/completions",
            CompletionRequest,
            completions.answer,
            COMPLETIONS.ignored,
        ),
        *responses.routes(site),
        *embeddings.routes(site),
        *scores.routes(site),
        *models.routes(site),
        *adapters.routes(site),
        *tokens.routes(site),
    ]
