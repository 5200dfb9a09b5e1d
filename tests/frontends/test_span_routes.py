"""The route in the span of a request: as it was declared, whatever the names in its path are."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from mindspore_serving.frontends.chat.endpoint import RouteIf
from mindspore_serving.frontends.gate import Gate
from mindspore_serving.frontends.http.unrouted import without_slash
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.spans import route_of

KEY = "a-key-of-twenty-letters"


class Endpoint:
    """As of a route: an ASGI application."""

    async def __call__(self, scope, receive, send):
        pass


SHARED = Endpoint()
ROUTES = [
    Route("/v2/models/{name}", SHARED),
    Route("/v2/models/{name}/versions/{version}", SHARED),
    RouteIf(Route("/v2/models/{name}/infer", Endpoint()), lambda scope: True),
    Route("/v2/repository/{repository}/models/{name}/load", Endpoint()),
    Route("/model/{path:path}", Endpoint()),
    Route("/{path:path}", Endpoint()),
]


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
    app = Gate(without_slash(Starlette(routes=ROUTES)), Keys([KEY]), None)
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    asyncio.run(app(scope, None, None))  # type: ignore[arg-type]
    assert route_of(scope) == route


def test_what_was_refused_before_any_route_has_none() -> None:
    assert route_of({"type": "http", "method": "GET", "path": "/v2/models/a", "headers": []}) == ""
