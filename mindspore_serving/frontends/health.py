"""Whether the server lives, and what it is ready for: GET /livez, /readyz and /readyz/NAME, and the
service grpc.health.v1.  Everybody may ask, so nothing here tells more than names and versions.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.wire.status import seconds_of


def routes(control: Control) -> list[BaseRoute]:
    """GET /livez is 200 if the server answers at all; GET /readyz is 503 until everything, or the
    servable that is named, takes requests."""

    async def live(_: Request) -> Response:
        return PlainTextResponse("alive")

    async def ready(_: Request) -> Response:
        return _show(control.readiness(), is_ready=control.is_ready)

    async def servable_ready(request: Request) -> Response:
        name = request.path_params["name"]
        found = of_servable(control, name)
        if not found:
            return JSONResponse({"error_msg": f"there is no servable {name!r}"}, 404)
        return _show(found, is_ready=all(one.is_ready for one in found))

    return [
        Route("/livez", live, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        Route("/readyz/{name}", servable_ready, methods=["GET"]),
    ]


def of_servable(control: Control, name: str) -> list[ServableReadiness]:
    """Each version of the servable `name`; none if there is no such servable."""
    return [one for one in control.readiness() if one.name == name]


def _show(found: Sequence[ServableReadiness], *, is_ready: bool) -> Response:
    servables = [
        {"name": one.name, "version": one.version, "ready": one.is_ready, "reason": one.reason}
        for one in found
    ]
    body = {"ready": is_ready, "servables": servables}
    if is_ready:
        return JSONResponse(body)
    return JSONResponse(body, 503, {"retry-after": seconds_of(None)})
