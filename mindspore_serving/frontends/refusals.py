"""A request that no route answers, refused in the form of the protocol of its path."""

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.errors import ServingError, Unauthorized, WrongVerb
from mindspore_serving.frontends.access import is_predict
from mindspore_serving.frontends.anthropic.errors import asks_as_anthropic, to_limit
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.cohere.rerank import to_response as to_cohere
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.llm_serving.routes import to_response as to_llm_serving
from mindspore_serving.frontends.ollama.errors import to_response as to_ollama
from mindspore_serving.frontends.tei.errors import to_response as to_tei
from mindspore_serving.frontends.tgi.errors import to_tgi_error
from mindspore_serving.frontends.v2.errors import to_response as to_v2
from mindspore_serving.wire import status

Answer = Callable[[ServingError], Response]


def refuse(scope: Scope, error: ServingError, path: str = "") -> Response:
    """The answer to a request, which is refused for `error`; as one for `path`, if it is given."""
    path = path or scope["path"]
    is_anthropics = path.startswith("/v1/") and asks_as_anthropic(scope)
    response = (_anthropic if is_anthropics else _row(path))(error)
    if isinstance(error, Unauthorized):
        # A header each: browsers do not read a list.
        response.headers.append("www-authenticate", 'Basic realm="API key as password"')
        response.headers.append("www-authenticate", "Bearer")
    if isinstance(error, WrongVerb):
        response.headers["allow"] = ", ".join(error.allowed)
    return response


def is_protocol(path: str) -> bool:
    """Whether a protocol has all paths that begin as `path` does."""
    return _row(path) is not _other


def _row(path: str) -> Answer:
    if is_predict(path):
        return to_v2
    return next(answer for prefixes, answer in PROTOCOLS if f"{path}/".startswith(prefixes))


def _openai(error: ServingError) -> Response:
    return to_failure(error).to_response()


def _anthropic(error: ServingError) -> Response:
    return to_limit(error).to_response()


def _classic(error: ServingError) -> Response:
    http = status.of(error.code).http
    return to_json({"error_msg": str(error)}, http, status.retry_after(error))


def _other(error: ServingError) -> Response:
    """TGI's form, whose paths have no common beginning."""
    if isinstance(error, Unauthorized):
        return Response(b"", 401, media_type="application/json")
    if isinstance(error, WrongVerb):
        return Response(b"", 405)
    return to_tgi_error(error).to_response()


OLLAMA = tuple(  # a classic URL may begin with "/api/" too
    f"/api/{name}/"
    for name in (
        *("chat", "generate", "embed", "embeddings", "tags", "ps", "show", "version"),
        *("pull", "push", "create", "copy", "delete", "blobs"),
    )
)
PROTOCOLS: tuple[tuple[tuple[str, ...], Answer], ...] = (
    (("/v1/rerank/", "/v2/rerank/"), to_cohere),
    (("/v2/",), to_v2),
    (("/v1/messages/",), _anthropic),
    (("/v1/", "/tokenize/", "/detokenize/", "/tokenizer_info/", "/score/", "/classify/"), _openai),
    (("/embed/", "/embed_sparse/", "/predict/", "/rerank/", "/similarity/"), to_tei),
    (OLLAMA, to_ollama),
    (("/models/", "/serving/"), to_llm_serving),
    (("/model/", "/servables/", "/metrics/"), _classic),
    (("",), _other),
)
"""How the paths begin that a protocol has, and how it writes an error; the first row that fits."""
