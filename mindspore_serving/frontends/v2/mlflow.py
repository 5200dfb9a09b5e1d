"""MLflow's scoring protocol: POST /invocations, for a server of one servable.

The route is also SageMaker's, for models that are no language models.
"""

from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, ServingError, printable
from mindspore_serving.frontends.health import has_models
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.operation import JSON, Body, to_object
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute
from mindspore_serving.frontends.v2 import v1, v1_bodies
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.wire import status

_PREDICTION = "prediction"  # output of models of rows, which MLflow returns alone


class MlflowError(msgspec.Struct):
    """Error in MLflow's form."""

    error_code: str
    message: str


def to_response(error: Exception) -> Response:
    """Return the answer for `error`, within its except block."""
    if not isinstance(error, ServingError):
        log.error("a request failed", exc_info=True)
        return to_json(MlflowError("INTERNAL_ERROR", "the server failed; its log says why"), 500)
    code = status.of(error.code).http
    name = "BAD_REQUEST" if code < 500 else "INTERNAL_ERROR"
    text = MlflowError(name, printable(str(error)))
    return to_json(text, code, status.retry_after(error))


async def invoke(v2: V2, http: HttpRequest) -> Response:
    """Call the default method of the only servable."""
    names = sorted({state.name for state in v2.state.control.readiness()})
    if len(names) != 1:
        raise InvalidInputs(
            f"/invocations calls the only servable, and there are {len(names)}: "
            f"{', '.join(names[:8])}; send the body to /v1/models/NAME:predict"
        )
    model = v2.models.find(names[0])
    answers = await v1.infer_body(v2, http, model, v1_bodies.from_mlflow)
    return v1.to_predictions(answers, model, only=_PREDICTION)


def _has_no_language_model(v2: V2, _: Scope) -> bool:
    return not has_models(v2.state.control) and bool(v2.state.control.readiness())


_TABLE: dict[str, Any] = {
    "dataframe_split": {"columns": ["length", "width"], "data": [[5.1, 3.5], [4.9, 3.0]]}
}
PROTOCOL = HttpProtocol(
    "mlflow",
    to_response,
    title="MLflow",
    about="MLflow's scoring protocol, for a server of one servable that is no language model.",
    errors={JSON: MlflowError},
)
ROUTES = (
    HttpRoute(
        "POST",
        "/invocations",
        invoke,
        "Call the only servable with a DataFrame, instances or inputs",
        {JSON: to_object({"predictions": {"type": "array"}})},
        body=Body({"type": "object"}, example=_TABLE),
        protocol=PROTOCOL,
        applies=_has_no_language_model,
    ),
)
