"""Audit log: who sent which request, a JSON line each.  It has nothing of a body and no query."""

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mindspore_serving import log
from mindspore_serving.frontends.keys import TENANT, Tenant

Put = Callable[[bytes], None]


class AuditLog:
    """Writer of the lines, which `put` takes."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def add(self, kind: str, tenant: Tenant | None, **fields: Any) -> None:
        """Add a line; fields that are None or "" are left out."""
        row = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "kind": kind,
            "key": tenant.name if tenant is not None else "",
            **fields,
        }
        shown = {name: value for name, value in row.items() if value not in (None, "")}
        self._put(msgspec.json.encode(shown) + b"\n")


class AuditedApp:
    """An ASGI application whose requests are logged with their status, at their end."""

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499  # the client disconnected

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            client = scope.get("client") or ("", 0)
            self._audit.add(
                "request",
                scope.get(TENANT),
                verb=scope["method"],
                path=scope["path"],
                status=status,
                client=client[0],
                request_id=log.request_id.get(),
            )
