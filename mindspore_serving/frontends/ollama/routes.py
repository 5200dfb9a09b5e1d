"""Routes of Ollama's protocol."""

from functools import partial

from mindspore_serving.frontends.ollama import (
    answering,
    answers,
    changing,
    embedding,
    models,
    requests,
)
from mindspore_serving.frontends.ollama.errors import to_response
from mindspore_serving.frontends.ollama.fields import (
    CHAT,
    CREATE,
    EMBED,
    GENERATE,
    OPTIONS,
    Options,
    find_ignored,
)
from mindspore_serving.frontends.ollama.writing import LINES
from mindspore_serving.frontends.operation import JSON, MODEL, STRING, Body, Lax
from mindspore_serving.frontends.routes import (
    EMBEDDING,
    GENERATING,
    LANGUAGE,
    HttpProtocol,
    HttpRoute,
)

PROTOCOL = HttpProtocol(
    "ollama",
    to_response,
    title="Ollama",
    about="Ollama's protocol, for language models.",
    errors={JSON: answers.OllamaError},
)
_MODEL = {"model": MODEL}
_HELLO = {"model": MODEL, "options": {"num_predict": 8}}
_REFUSED = ("push", "blobs/{digest}")

_route = partial(HttpRoute, protocol=PROTOCOL, needs=LANGUAGE)
_get = partial(_route, "GET")
_post = partial(_route, "POST", decodes=True)
_ask = partial(_post, find_ignored=find_ignored)
_NO_FILES = "Always 403: clients send no files of models"
_refused = partial(_route, handler=models.refuse_change)


def _generating() -> tuple[HttpRoute, ...]:
    return (
        _ask(
            "/api/chat",
            answering.chat,
            "Answer a chat, as lines of JSON unless `stream` is false",
            {JSON: answers.ChatAnswer, LINES: STRING},
            body=Body(
                requests.ChatBody,
                {requests.ChatBody: CHAT, Options: Lax(OPTIONS)},
                {**_HELLO, "messages": [{"role": "user", "content": "Hello"}]},
                read_as=requests.OllamaChatRequest,
            ),
            refused_early=GENERATING,
        ),
        _ask(
            "/api/generate",
            answering.generate,
            "Answer a prompt, as lines of JSON unless `stream` is false",
            {JSON: answers.GenerateAnswer, LINES: STRING},
            body=Body(
                requests.GenerateBody,
                {requests.GenerateBody: GENERATE, Options: Lax(OPTIONS)},
                {**_HELLO, "prompt": "Hello"},
                read_as=requests.OllamaGenerateRequest,
            ),
            refused_early=GENERATING,
        ),
    )


def _embedding() -> tuple[HttpRoute, ...]:
    return (
        _ask(
            "/api/embed",
            embedding.embed,
            "Embed texts",
            {JSON: answers.OllamaEmbeddings},
            body=Body(requests.OllamaEmbedRequest, {requests.OllamaEmbedRequest: EMBED}),
            refused_early=EMBEDDING,
        ),
        _ask(
            "/api/embeddings",
            embedding.embed_prompt,
            "Embed a text",
            {JSON: answers.Vector},
            body=Body(requests.EmbeddingsRequest, {requests.EmbeddingsRequest: EMBED}),
        ),
    )


def _about_models() -> tuple[HttpRoute, ...]:
    return (
        _get(
            "/api/tags",
            lambda state, _: models.list_all(state),
            "List the models",
            {JSON: answers.OllamaModels},
        ),
        _get(
            "/api/ps",
            lambda state, _: models.list_running(state),
            "List the models, which are all loaded",
            {JSON: answers.OllamaModels},
        ),
        _get(
            "/api/version",
            lambda *_: answers.Version(models.VERSION),
            "Get the version of this server",
            {JSON: answers.Version},
        ),
        _post(
            "/api/show",
            models.show,
            "Get a model",
            {JSON: answers.OllamaModelDetails},
            body=Body(requests.ModelRequest, example=_MODEL),
        ),
    )


def _changing() -> tuple[HttpRoute, ...]:
    return (
        _post(
            "/api/pull",
            changing.pull,
            "Download a model and serve it, as lines of JSON unless `stream` is false",
            {JSON: answers.Pulled, LINES: STRING},
            body=Body(requests.PullRequest, example={**_MODEL, "stream": False}),
        ),
        _post(
            "/api/create",
            changing.create,
            "Make a model of another one, as lines of JSON unless `stream` is false",
            {JSON: answers.Pulled, LINES: STRING},
            body=Body(
                requests.CreateRequest,
                {requests.CreateRequest: CREATE},
                example={"model": "terse", "from": MODEL, "system": "Be brief.", "stream": False},
            ),
        ),
        _post(
            "/api/copy",
            changing.copy,
            "Give a model one more name",
            body=Body(requests.CopyRequest, example={"source": MODEL, "destination": "copy"}),
        ),
        _route(
            "DELETE",
            "/api/delete",
            changing.delete,
            "Delete a model that clients have made",
            decodes=True,
            body=Body(requests.ModelRequest, example=_MODEL),
        ),
        *(_refused("POST", f"/api/{name}", summary=_NO_FILES) for name in _REFUSED),
        *(_refused("HEAD", f"/api/{name}") for name in _REFUSED),
    )


ROUTES = (*_generating(), *_embedding(), *_about_models(), *_changing())
