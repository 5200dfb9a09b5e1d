"""The original's RESTful protocol: what a POST asks for, and what its answer looks like.

Shared by the fast path and the application; knows neither sockets nor ASGI.
"""

from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.wire import ms_json, status

_MAX_ROUTES = 4096
_routes: dict[bytes, ms_json.Route] = {}


def find_route(target: bytes) -> ms_json.Route:
    """The route a request target asks for.  Raises InvalidInputs."""
    route = _routes.get(target)
    if route is None:
        route = ms_json.parse_path(target)
        if len(_routes) >= _MAX_ROUTES:
            _routes.clear()
        _routes[target] = route
    return route


def to_request(route: ms_json.Route, body: bytes | bytearray, timeout: float | None) -> Request:
    """The request for `body`.  Raises InvalidInputs if it is empty."""
    if not body:
        raise InvalidInputs("http message invalid")
    return Request(route.servable, route.method, route.version, "ms_json", body, timeout=timeout)


def to_timeout(header: bytes) -> float:
    """Seconds from an X-Request-Timeout header.  Raises InvalidInputs."""
    try:
        timeout = float(header)
    except ValueError:
        timeout = -1.0
    if not 0 < timeout <= 1e6:
        raise InvalidInputs(
            f"header X-Request-Timeout {header[:32]!r}: expected seconds, over 0 and at most 1e6"
        )
    return timeout


def to_body(reply: Reply) -> tuple[int, bytes]:
    """The HTTP status that fits `reply`, and its JSON body."""
    if reply.failure is not None:
        return to_error(reply.failure)
    if reply.faults is None:
        return 200, ms_json.assemble(reply.instances)
    body = ms_json.assemble(reply.instances, reply.failures())
    codes = {fault.code if fault else 0 for fault in reply.faults}
    return (200 if 0 in codes else status.of(max(codes)).http), body


def to_error(error: ServingError) -> tuple[int, bytes]:
    return status.of(error.code).http, ms_json.assemble_error(str(error))


def too_big(limit: int) -> InvalidInputs:
    return InvalidInputs(f"http message is bigger than {limit}")
