"""The RESTful protocol of the original: parsing of requests, and making of answers.

The fast path and the application use it; knows neither sockets nor ASGI.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.core.buffers import BufferList
from mindspore_serving.core.sequences import SequenceStep, step_of_texts
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import Forbidden, InvalidInputs, ServingError, Unauthorized
from mindspore_serving.frontends.bodies import OF_MESSAGES
from mindspore_serving.wire import ms_json, status

_MAX_ROUTES = 4096
_MAX_CACHED = 512  # bytes of a target in the cache of routes
_routes: dict[bytes, ms_json.Route] = {}

# Status, JSON body, and Retry-After if the request can be sent again.
Answer: TypeAlias = "tuple[int, bytes | BufferList, str | None]"


@dataclass(frozen=True, slots=True)
class MsRest:
    """The protocol with the options of one server.

    `max_body` is in bytes.  Without `use_status_codes` the status of errors is 200, as in the
    original, but for missing or wrong keys and forbidden requests.  `limits` are those of streams.
    """

    max_body: int
    use_status_codes: bool = False
    limits: ServerLimits = ServerLimits()

    def to_timeout(self, headers: Mapping[bytes, bytes]) -> float | None:
        """Return the timeout of a request in seconds by its headers, None for no limit.

        Raises InvalidInputs, also if the content-length is over the limit.
        """
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.max_body:
            raise self.too_big()
        header = headers.get(b"x-request-timeout")
        return None if header is None else to_timeout(header)

    def answer(self, reply: Reply, request_id: bytes = b"") -> Answer:
        """Return the answer for a reply; `request_id` is for the log."""
        if reply.failure is not None:
            return self.refuse(reply.failure)
        try:
            if reply.faults is None:
                return 200, ms_json.assemble(reply.instances), None
            code, body = to_body(reply)
        except Exception:
            with log.of_request(request_id.decode()):
                log.error("a request failed", exc_info=True)
            return self.refuse(ServingError("Failed to construct the response"))
        if code == 200:
            return code, body, None
        seconds = filter(None, map(status.retry_after, reply.faults or ()))
        return code if self.use_status_codes else 200, body, next(seconds, None)

    def refuse(self, error: Exception) -> Answer:
        """Return the answer for an error; one that is not a ServingError is logged."""
        if not isinstance(error, ServingError):
            log.error("serving a request: %r", error, exc_info=True)
            error = ServingError("Predict failed")
        code, body = to_error(error)
        has_code = self.use_status_codes or isinstance(error, Unauthorized | Forbidden)
        return code if has_code else 200, body, status.retry_after(error)

    def too_big(self) -> InvalidInputs:
        """Return the error for a body over the limit."""
        text = f"http message is bigger than {self.max_body} bytes"
        return InvalidInputs(f"{text}; {OF_MESSAGES} of the server sets this limit")


def find_route(target: bytes) -> ms_json.Route:
    """Return the route of a request target, from a cache.  Raises InvalidInputs."""
    route = _routes.get(target)
    if route is None:
        route = ms_json.parse_path(target)
        if len(_routes) >= _MAX_ROUTES:
            _routes.clear()
        if len(target) <= _MAX_CACHED:
            _routes[target] = route
    return route


def is_classic(target: bytes) -> bool:
    """Return whether `target` names a method as this protocol does, anywhere in the path."""
    try:
        find_route(target)
    except InvalidInputs:
        return False
    return True


def sequence_of_headers(headers: Mapping[bytes, bytes]) -> SequenceStep | None:
    """Return the sequence that the headers of a request name, if any.  Raises InvalidInputs."""
    if b"sequence-id" not in headers:
        return None
    names = (b"sequence-id", b"sequence-start", b"sequence-end")
    return step_of_texts(*(headers.get(name, b"").decode("latin-1") for name in names))


def to_request(
    route: ms_json.Route,
    body: bytes | bytearray,
    timeout: float | None,
    *,
    priority: int = 0,
    sequence: SequenceStep | None = None,
) -> Request:
    """Make the request to the master.  Raises InvalidInputs if the body is empty."""
    if not body:
        raise InvalidInputs(
            'http message invalid: the body is empty, expected {"instances": [{"INPUT": VALUE}]}'
        )
    return Request(
        route.servable,
        route.method,
        route.version,
        "ms_json",
        body,
        timeout=timeout,
        priority=priority,
        sequence=sequence,
    )


def to_priority(header: bytes | None) -> int:
    """Parse an X-Request-Priority header, 0 without one.  Raises InvalidInputs."""
    if header is None:
        return 0
    if not header.isdigit() or len(header) > 9:
        raise InvalidInputs(
            f"header X-Request-Priority '{header[:32].decode('latin-1')}': expected a level of the "
            "queue, 1 for the first"
        )
    return int(header)


def to_timeout(header: bytes) -> float:
    """Parse an X-Request-Timeout header, in seconds.  Raises InvalidInputs."""
    try:
        timeout = float(header)
    except ValueError:
        timeout = -1.0
    if not 0 < timeout <= 1e6:
        raise InvalidInputs(
            f"header X-Request-Timeout '{header[:32].decode('latin-1')}': expected seconds, over 0 "
            "and at most 1e6"
        )
    return timeout


def to_body(reply: Reply) -> tuple[int, bytes]:
    """Return the HTTP status for `reply`, and its JSON body."""
    if reply.failure is not None:
        return to_error(reply.failure)
    if reply.faults is None:
        return 200, ms_json.assemble(reply.instances)
    body = ms_json.assemble(reply.instances, reply.failures())
    codes = {fault.code if fault else 0 for fault in reply.faults}
    return (200 if 0 in codes else status.of(max(codes)).http), body


def to_error(error: ServingError) -> tuple[int, bytes]:
    """Return the HTTP status for an error, and its JSON body."""
    return status.of(error.code).http, ms_json.assemble_error(str(error))
