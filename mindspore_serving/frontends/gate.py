"""The gate in front of every route: who may ask, and how often.  Knows no route's work."""

from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.keys import HOLDER, KeyHolder, Keys
from mindspore_serving.frontends.origins import SAFE, OriginPolicy
from mindspore_serving.frontends.paths import PathNode
from mindspore_serving.frontends.protocols import PATHS
from mindspore_serving.frontends.refusals import refuse


class Gate:
    """ASGI middleware: refuses what has no key or comes from another site, in the form of the
    protocol that the path is of.
    """

    def __init__(self, app: ASGIApp, keys: Keys, origins: OriginPolicy | None) -> None:
        self._app = app
        self._keys = keys
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = PATHS.find(scope["path"])
        if place.is_open:
            await self._app(scope, receive, send)
            return
        try:
            holder = self._admit(scope, place)
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

    def _admit(self, scope: Scope, place: PathNode) -> KeyHolder | None:
        """Who asks, None if there are no keys.  Raises ServingError."""
        fields = dict(scope["headers"])
        if self._origins is not None:
            self._origins.check(scope["method"], fields)
            if scope["method"] not in SAFE and not place.takes_text:
                self._origins.check_type(fields)
        if not self._keys:
            return None
        return self._keys.find(fields.get(b"authorization"), fields.get(b"x-api-key")).admit()
