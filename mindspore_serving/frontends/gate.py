"""The gate in front of every route: who may ask, and how often.  Knows no route's work."""

from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.keys import HOLDER, KeyHolder, Keys
from mindspore_serving.frontends.refusals import OLLAMA, refuse
from mindspore_serving.frontends.sites import SiteRules

_LANGUAGE = (  # routes of language models, beside "/"
    *("/v1/", "/v2/", "/models/", "/serving/", "/generate", *OLLAMA),
    *("/tokenize", "/detokenize", "/chat_tokenize", "/invocations"),
    *("/embed", "/predict", "/rerank", "/similarity", "/score", "/classify"),
)
OPEN_PATHS = (  # for everybody
    *("/health", "/livez", "/readyz"),
    *("/v2/health/live", "/v2/health/ready"),
)


class Gate:
    """ASGI middleware: refuses what has no key or comes from another site, in the form of the
    protocol that the path is of."""

    def __init__(self, app: ASGIApp, keys: Keys, sites: SiteRules | None) -> None:
        self._app = app
        self._keys = keys
        self._sites = sites

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith("/readyz/"):
            await self._app(scope, receive, send)
            return
        try:
            holder = self._admit(scope)
        except ServingError as error:
            await refuse(scope, error)(scope, receive, send)
            return
        if holder is None:
            await self._app(scope, receive, send)
            return
        scope[HOLDER] = holder  # not in a copy: who calls looks there for the route
        try:
            await self._app(scope, receive, send)
        finally:
            holder.release()

    def _admit(self, scope: Scope) -> KeyHolder | None:
        """Who asks, None if there are no keys.  Raises ServingError."""
        fields = dict(scope["headers"])
        if self._sites is not None:
            self._sites.check(scope["method"], fields)
            if f"{scope['path']}/".startswith(_LANGUAGE) or scope["path"] == "/":
                self._sites.check_type(fields)
        if not self._keys:
            return None
        return self._keys.find(fields.get(b"authorization"), fields.get(b"x-api-key")).admit()
