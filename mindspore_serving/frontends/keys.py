"""API keys: which requests are accepted.  Of routes it knows only the form of a refusal."""

import base64
import binascii
import hmac
from collections.abc import Sequence

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health"})
TEXT = "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'"
_ERROR = {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
_OPENAI = msgspec.json.encode({"error": {"message": TEXT, **_ERROR}})
_CLASSIC = msgspec.json.encode({"error_msg": TEXT})


class Keys:
    """The keys that are accepted; none at all accepts everything."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def accept(self, authorization: bytes | None) -> bool:
        """Whether an Authorization header has a key: as a bearer token, or as the password of
        basic authentication, for which browsers show a dialogue."""
        if not self._keys:
            return True
        given = _key_of(authorization or b"")
        is_found = False
        for key in self._keys:  # all of them: the time must not show which
            is_found |= hmac.compare_digest(given, key)
        return is_found


def _key_of(authorization: bytes) -> bytes:
    scheme, _, rest = authorization.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


class KeyGate:
    """ASGI middleware: refuses what has no key, in the form of the protocol that the path is of."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS
        if is_open or self._keys.accept(dict(scope["headers"]).get(b"authorization")):
            await self._app(scope, receive, send)
            return
        body = refusal(scope["path"])
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"www-authenticate", b'Basic realm="API key as password"'),  # one header each:
            (b"www-authenticate", b"Bearer"),  # browsers do not read a list
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def refusal(path: str) -> bytes:
    """The body of the error."""
    if path.startswith(("/v1/", "/tokenize", "/detokenize")):
        return _OPENAI
    if path.startswith(("/model/", "/servables", "/metrics")):
        return _CLASSIC
    return b""  # as TGI does
