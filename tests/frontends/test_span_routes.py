"""The route in the span of a request: as it was declared, whatever the names in its path are."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.frontends.gate import Gate
from mindspore_serving.frontends.http.unrouted import Unrouted, without_slash
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.routes import HttpRoute, bind, to_app
from mindspore_serving.frontends.spans import route_of
from mindspore_serving.frontends.v2.routes import PROTOCOL

KEY = "a-key-of-twenty-letters"


async def answer(context: object, request: Request) -> Response:
    return Response()


PATHS = (
    "/v2/models/{name}",
    "/v2/models/{name}/versions/{version}",
    "/v2/models/{name}/infer",
    "/v2/repository/{repository}/models/{name}/load",
    "/model/{path:path}",
)
ROUTES = bind(
    [HttpRoute(verb="GET", path=path, protocol=PROTOCOL, handler=answer) for path in PATHS], None
)


async def ignore(message: object) -> None:
    """What would be sent."""


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2/models/models", "/v2/models/{name}"),
        ("/v2/models/models/", "/v2/models/{name}"),
        ("/v2/models/versions/versions/versions", "/v2/models/{name}/versions/{version}"),
        ("/v2/models/infer/infer", "/v2/models/{name}/infer"),
        (
            "/v2/repository/models/models/load/load",
            "/v2/repository/{repository}/models/{name}/load",
        ),
        ("/model/words:double", "/model/{path}"),
        ("/of/no/protocol", ""),
    ],
)
def test_a_route_is_found_whatever_the_names_in_a_path_are(path: str, route: str) -> None:
    app = Gate(without_slash(to_app(ROUTES, Unrouted(ROUTES))), Keys([KEY]), None)
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    asyncio.run(app(scope, None, ignore))  # type: ignore[arg-type]
    assert route_of(scope) == route


def test_requests_refused_before_routing_have_no_route() -> None:
    assert route_of({"type": "http", "method": "GET", "path": "/v2/models/a", "headers": []}) == ""
