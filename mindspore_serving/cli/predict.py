"""`mindspore-serving predict`: send one request over REST or gRPC, and print the reply as JSON.

Both read and print the same JSON, which is converted to and from tensors for gRPC.
"""

import json
import sys
from contextlib import redirect_stdout, suppress
from http.client import HTTPException
from io import StringIO
from typing import Any, TypeAlias
from urllib.parse import quote

from mindspore_serving.cli.endpoint import no_answer, to_endpoint, to_key
from mindspore_serving.cli.node_settings import PredictSettings
from mindspore_serving.core.sequences import to_fields, to_step
from mindspore_serving.errors import InvalidInputs, ServingError

Fields: TypeAlias = tuple[tuple[str, str], ...]  # headers, or metadata of gRPC
_GRPC = "grpc"  # scheme of URLs
_IS_HTTP = "this is an HTTP port"  # of the client's error


def run(settings: PredictSettings) -> int:
    """Print the reply; return 1 if the request or an instance of it failed.

    Raises ServingError if there is no reply, InvalidInputs if INPUTS or URL is wrong.
    """
    instances, fields = _instances(settings), _sequence_fields(settings)
    scheme, mark, _ = settings.url.partition("://")
    is_http = bool(mark) and scheme not in (_GRPC, "unix")
    reply = (_post if is_http else _call)(settings, instances, fields)
    print(json.dumps(reply))
    has_failed = "error_msg" in reply or any(
        "error_msg" in instance for instance in reply["instances"]
    )
    return int(has_failed)


def _instances(settings: PredictSettings) -> list[dict[str, Any]]:
    text = sys.stdin.read() if settings.inputs == "-" else settings.inputs
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InvalidInputs(f"INPUTS is not JSON: {error}") from error
    if isinstance(parsed, dict) and set(parsed) == {"instances"}:
        raise InvalidInputs(
            'INPUTS is the value of "instances" in a REST body: leave out {"instances": ...}'
        )
    instances = parsed if isinstance(parsed, list) else [parsed]
    is_end = settings.end and not instances  # which computes nothing
    if not (instances or is_end) or not all(isinstance(instance, dict) for instance in instances):
        raise InvalidInputs(
            'INPUTS should be an object such as {"x": [1.0, 2.0]}, or an array of such objects'
        )
    return instances


def _sequence_fields(settings: PredictSettings) -> Fields:
    step = to_step(settings.sequence, settings.start, settings.end)
    if step is None and (settings.start or settings.end):
        raise InvalidInputs("--start and --end need the id of a sequence: --sequence ID")
    return () if step is None else to_fields(step)


def _post(
    settings: PredictSettings, instances: list[dict[str, Any]], fields: Fields
) -> dict[str, Any]:
    endpoint = to_endpoint(settings.url, settings)
    version = f"/version/{settings.servable_version}" if settings.servable_version else ""
    path = f"/model/{quote(settings.servable)}{version}:{quote(settings.method)}"
    connection = endpoint.connect(settings.timeout)
    try:
        body = json.dumps({"instances": instances})
        headers = {**endpoint.headers, **dict(fields)}
        connection.request("POST", endpoint.base + path, body, headers)
        reply = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError) as error:
        raise no_answer(endpoint, error) from error
    finally:
        connection.close()
    if not isinstance(reply, dict) or not {"instances", "error_msg"} & set(reply):
        raise ServingError(
            f"{settings.url} answered, but is not a MindSpore Serving server: {reply}"
        )
    return reply


def _call(
    settings: PredictSettings, instances: list[dict[str, Any]], fields: Fields
) -> dict[str, Any]:
    from mindspore_serving.client import Client, SSLConfig

    values = [{name: _to_value(instance[name]) for name in instance} for instance in instances]
    files = (settings.tls_cert, settings.tls_key, settings.tls_ca)
    tls = SSLConfig(*files) if settings.tls or any(files) else None
    address = settings.url.removeprefix(f"{_GRPC}://")
    names = (address, settings.servable, settings.method, settings.servable_version)
    with (
        Client(*names, tls, timeout=settings.timeout, api_key=to_key(settings) or None) as client,
        redirect_stdout(StringIO()),  # `infer` prints an error that is also in its result
    ):
        results = client.infer_with(values, metadata=fields)
    if isinstance(results, dict):
        is_rest = _IS_HTTP in results["error"]
        return {"error_msg": results["error"] + f", or write http://{address}" * is_rest}
    return {"instances": [_to_plain(instance) for instance in results]}


def _to_value(item: Any) -> Any:
    """Convert a JSON value to numpy; numbers keep Python's types, which the server casts.

    null becomes NaN, as the type of the model's input is not known here.
    """
    import numpy as np

    from mindspore_serving.core import casting
    from mindspore_serving.core import dtype as dtypes
    from mindspore_serving.wire import json_values

    if item is None or isinstance(item, int | float | list):
        with suppress(ValueError):  # lists of unequal lengths
            array = casting.with_missing(np.asarray(item))
            if array.dtype in dtypes.BY_NUMPY and array.size:
                return array
    return json_values.to_value(item)


def _to_plain(outputs: dict[str, Any]) -> Any:
    from mindspore_serving.wire import ms_json

    if set(outputs) == {"error"} and type(outputs["error"]) is str:
        return {"error_msg": outputs["error"]}
    return json.loads(ms_json.encode(outputs))
