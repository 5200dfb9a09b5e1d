"""Whether the server lives, and what it is ready for: GET /livez, /health and /readyz, and the
service grpc.health.v1.  Everybody may ask, so nothing here shows more than names, versions and
reasons.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.errors import ServableUnavailable
from mindspore_serving.wire.status import seconds_of

LOOK_AGAIN = 1.0  # seconds


def routes(control: Control) -> list[BaseRoute]:
    """GET /livez is 200 if the server answers at all; GET /readyz and /health are 503 until
    everything, or the servables that `/readyz/NAME` or `?servable=NAME` name, take requests."""

    async def live(_: Request) -> Response:
        return PlainTextResponse("alive")

    async def health(_: Request) -> Response:
        if control.is_ready:
            return PlainTextResponse("ready")
        missing = still_loading(control) if control.readiness() else None
        text = "not ready" if missing is None else f"not ready: {missing}"
        return PlainTextResponse(text, 503, {"retry-after": seconds_of(None)})

    async def ready(request: Request) -> Response:
        names = [*request.query_params.getlist("servable"), *request.path_params.values()]
        if not names:
            return _show(control.readiness(), is_ready=control.is_ready)
        found = []
        for name in names:
            versions = of_servable(control, name)
            if not versions:
                return JSONResponse({"error_msg": f"there is no servable {name!r}"}, 404)
            found += versions
        return _show(found, is_ready=are_ready(control, found))

    return [
        Route("/livez", live, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        Route("/readyz/{servable:path}", ready, methods=["GET"]),
    ]


def of_servable(control: Control, name: str) -> list[ServableReadiness]:
    """Each version of the servable `name`; none if there is no such servable."""
    return [one for one in control.readiness() if one.name == name]


def are_ready(control: Control, found: Sequence[ServableReadiness]) -> bool:
    """Whether all of `found` take requests; one that is loaded beside others does not count yet."""
    settled = [one for one in found if control.is_starting or one.loaded is None]
    return all(one.is_ready for one in settled or found)


def still_loading(control: Control, name: str = "") -> ServableUnavailable | None:
    """Why what is served now is not all that was to be served first, or why the servable `name` is
    not there yet; None if nothing more is expected."""
    found = [one for one in control.readiness() if control.is_starting or one.name == name]
    if control.is_starting and not found:
        return ServableUnavailable("no servable is started yet", LOOK_AGAIN)
    if all(one.loaded is None for one in found):
        return None
    shares = [1.0 if one.loaded is None else one.loaded for one in found]
    share = f"{sum(shares) / len(shares):.0%}".replace("%", " %")
    what = "the server" if control.is_starting else name
    return ServableUnavailable(f"{what} is still loading, {share}", LOOK_AGAIN)


def _show(found: Sequence[ServableReadiness], *, is_ready: bool) -> Response:
    servables = [
        {"name": one.name, "version": one.version, "ready": one.is_ready, "reason": one.reason}
        for one in found
    ]
    body = {"ready": is_ready, "servables": servables}
    if is_ready:
        return JSONResponse(body)
    return JSONResponse(body, 503, {"retry-after": seconds_of(None)})
