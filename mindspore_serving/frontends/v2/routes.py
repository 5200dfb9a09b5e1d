"""The routes of protocol v2."""

from collections.abc import Iterator
from functools import partial

from mindspore_serving.frontends.operation import (
    JSON,
    STRING,
    Body,
    ModelReady,
    to_array,
    to_object,
)
from mindspore_serving.frontends.routes import LANGUAGE, LOADING, MEMORY, HttpProtocol, HttpRoute
from mindspore_serving.frontends.v2 import answering, answers, generating, repository, schemas
from mindspore_serving.frontends.v2.answering import model_of
from mindspore_serving.frontends.v2.descriptions import (
    server_metadata,
    to_config,
    to_metadata,
    to_statistics,
)
from mindspore_serving.frontends.v2.errors import to_response
from mindspore_serving.frontends.v2.http_inference import infer
from mindspore_serving.frontends.v2.settings import log_settings, trace_settings

PROTOCOL = HttpProtocol(
    "v2",
    to_response,
    title="Open Inference Protocol v2",
    about="The Open Inference Protocol v2: a servable is a model, as is each method, NAME.METHOD.",
    errors={JSON: answers.V2Error},
)
_BASES = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"

_get = partial(HttpRoute, "GET", protocol=PROTOCOL)
_post = partial(HttpRoute, "POST", protocol=PROTOCOL)


def _of_server() -> Iterator[HttpRoute]:
    yield _get(
        "/v2",
        lambda v2, _: server_metadata(has_memory=v2.memory.is_enabled),
        "Metadata of the server",
        {JSON: answers.ServerMetadata},
    )
    yield _get(
        "/v2/health/live",
        lambda *_: answers.ServerLive(True),
        "Liveness of the server",
        {JSON: answers.ServerLive},
        is_open=True,
    )
    ready = {JSON: answers.ServerReady}
    yield _get(
        "/v2/health/ready",
        answering.show_ready,
        "Readiness of all models",
        ready,
        other_answers={"503": ready},
        is_open=True,
    )


def _of_settings() -> Iterator[HttpRoute]:
    body = Body(schemas.OBJECT, example={}, is_required=False)
    shown = {JSON: answers.LogSettings}
    summary, path = "Settings of the log", "/v2/logging"
    text = "Change settings of the log. 403 unless clients can load models"
    yield _get(path, lambda *_: log_settings(), summary, shown)
    yield _post(path, answering.change_log, text, shown, body=body)
    traces = {JSON: answers.TraceSettings}
    summary = "Settings of traces"
    for path in ("/v2/trace/setting", "/v2/models/{name}/trace/setting"):
        text = "Change settings of traces"
        yield _get(path, lambda v2, _: trace_settings(v2.traces), summary, traces)
        yield _post(path, answering.change_trace, text, traces, body=body)


def _of_models() -> Iterator[HttpRoute]:
    statistics = {JSON: answers.Statistics}
    yield _get(
        "/v2/models",
        lambda v2, _: answers.ModelNames(v2.models.names()),
        "Names of the models",
        {JSON: answers.ModelNames},
    )
    yield _get(
        "/v2/models/stats",
        lambda v2, _: to_statistics(v2.state.control, v2.models.loaded()),
        "Statistics of all models",
        statistics,
    )
    for base in _BASES:
        yield _get(
            base,
            lambda v2, http: to_metadata(v2.models.find(*model_of(http))),
            "Metadata of a model: its inputs and outputs",
            {JSON: answers.ModelMetadata},
        )
        yield _get(
            f"{base}/config",
            lambda v2, http: to_config(v2.models.find(*model_of(http))),
            "Configuration of a model, as Triton has it",
            {JSON: answers.ModelConfig},
        )
        yield _get(
            f"{base}/ready",
            answering.show_model_ready,
            "Readiness of a model",
            {JSON: ModelReady},
            other_answers={"503": {JSON: ModelReady}},
        )
        yield _get(
            f"{base}/stats",
            lambda v2, http: to_statistics(v2.state.control, v2.models.loaded(*model_of(http))),
            "Statistics of a model",
            statistics,
        )


def _of_calls() -> Iterator[HttpRoute]:
    for base in _BASES:
        yield _post(
            f"{base}/infer",
            infer,
            "Call a model",
            {JSON: schemas.infer_answer(to_array(schemas.TENSOR)), schemas.BINARY: {}},
            body=Body(schemas.infer_request(to_array(schemas.TENSOR, at_least=1))),
        )
        text = partial(_post, body=schemas.generate_body(), needs=LANGUAGE)
        yield text(
            f"{base}/generate",
            generating.generate,
            "Continue a text",
            schemas.generate_answers(is_stream=False),
        )
        yield text(
            f"{base}/generate_stream",
            generating.generate_stream,
            "Continue a text, as events",
            schemas.generate_answers(is_stream=True),
        )


def _of_repository() -> Iterator[HttpRoute]:
    index = to_object({"ready": {"type": ["boolean", "null"]}}, "ready")
    options = to_object({"reload": schemas.BOOL, "config": STRING}, "reload", "config")
    load = to_object({"parameters": options | {"type": ["object", "null"]}}, "parameters")
    for base in ("/v2/repository", "/v2/repository/{repository}"):
        yield _post(
            f"{base}/index",
            answering.index,
            "Models that are loaded or can be",
            {JSON: list[answers.RepositoryModel]},
            body=Body(index, example={}, is_required=False),
        )
        yield _post(
            f"{base}/models/{{name}}/load",
            answering.load,
            "Load or reload a servable",
            body=Body(load, is_required=False),
            needs=LOADING,
        )
        yield _post(
            f"{base}/models/{{name}}/unload",
            lambda v2, http: repository.unload(v2.state.repository, http.path_params["name"]),
            "Unload a servable",
            body=Body(schemas.OBJECT, is_required=False),
            needs=LOADING,
        )


def _of_memory() -> Iterator[HttpRoute]:
    base, gpu = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    regions, region = {JSON: list[answers.RegisteredRegion]}, f"{base}/region/{{region}}"
    location = to_object(
        {"key": STRING, "offset": schemas.NUMBER, "byte_size": schemas.NUMBER}, "offset"
    )
    get, post = partial(_get, needs=MEMORY), partial(_post, needs=MEMORY)
    yield get(
        f"{gpu}/status",
        lambda *_: [],
        "An empty list: memory of GPUs cannot be registered",
        regions,
    )
    yield post(
        f"{gpu}/unregister", lambda *_: None, "No effect: memory of GPUs cannot be registered"
    )
    for path, summary in (
        (f"{base}/status", "Registered regions of shared memory"),
        (f"{region}/status", "A registered region"),
    ):
        yield get(
            path,
            lambda v2, http: v2.memory.status(http.path_params.get("region", "")),
            summary,
            regions,
        )
    yield post(f"{region}/register", answering.register, "Register a region", body=Body(location))
    for path, summary in (
        (f"{region}/unregister", "Unregister a region"),
        (f"{base}/unregister", "Unregister all regions"),
    ):
        yield post(
            path, lambda v2, http: v2.memory.unregister(http.path_params.get("region", "")), summary
        )


ROUTES = (
    *_of_server(),
    *_of_settings(),
    *_of_models(),
    *_of_calls(),
    *_of_repository(),
    *_of_memory(),
)
