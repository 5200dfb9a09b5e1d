"""GET /openapi.json, which describes what a caller of this server may send, and GET /docs, which
shows it to people.

The document is made from the tables that the protocols use, and from the signatures of what is
served now.  It is made on a thread of its own, and anew only when that has changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving.aio import on_thread
from mindspore_serving.frontends import page
from mindspore_serving.frontends.anthropic import operations as anthropic
from mindspore_serving.frontends.cohere import operations as cohere
from mindspore_serving.frontends.llm_serving import operations as llm_serving
from mindspore_serving.frontends.ollama import operations as ollama
from mindspore_serving.frontends.openai import operations as openai
from mindspore_serving.frontends.openapi import methods, server
from mindspore_serving.frontends.openapi.document import to_document
from mindspore_serving.frontends.openapi.methods import Served
from mindspore_serving.frontends.operation import Operation, Section
from mindspore_serving.frontends.tei import operations as tei
from mindspore_serving.frontends.tgi import operations as tgi
from mindspore_serving.frontends.v2 import operations as v2_operations
from mindspore_serving.frontends.v2.inference import V2

PATH = "/openapi.json"


@dataclass(frozen=True, slots=True)
class Visible:
    """What a server has that the document shows: whether requests need keys, and whether errors
    of the classic protocol have status codes."""

    has_keys: bool = False
    has_codes: bool = True


def routes(v2: V2, visible: Visible) -> list[BaseRoute]:
    described = _Described(v2, visible)

    async def document(request: Request) -> Response:
        etag, body = await described.render()
        headers = {"etag": etag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    async def docs(request: Request) -> Response:
        return page.show(request, "docs/docs.html")

    return [Route(PATH, document, methods=["GET"]), Route("/docs", docs, methods=["GET"])]


class _Described:
    """The document of what is served now."""

    def __init__(self, v2: V2, visible: Visible) -> None:
        self._v2 = v2
        self._visible = visible
        self._of: tuple[object, ...] = ()  # what the document that is kept is of
        self._kept = "", b""

    async def render(self) -> tuple[str, bytes]:
        """Its tag, and its JSON."""
        site = self._v2.site
        names = [one.name for one in site.models.all()] if site.control.has_language_models else []
        state = methods.look(site), tuple(names)
        if state != self._of:
            self._kept = await on_thread("openapi", self._make, *state)
            self._of = state
        return self._kept

    def _make(self, served: tuple[Served, ...], names: tuple[str, ...]) -> tuple[str, bytes]:
        sections = sections_of(self._v2, self._visible, served, names)
        document = to_document(sections, has_keys=self._visible.has_keys)
        body = msgspec.json.encode(document)
        return f'"{sha256(body).hexdigest()[:16]}"', body


def sections_of(
    v2: V2, visible: Visible, served: tuple[Served, ...], names: tuple[str, ...]
) -> list[Section]:
    """What can be called where `served` are the servables and `names` the language models."""
    repository = v2.site.repository
    allows = repository is not None and repository.is_allowed
    of_models = v2_operations.v2_section(v2, allows_loading=allows, has_language=bool(names))
    found = [
        methods.classic_section(served, has_codes=visible.has_codes),
        _with(of_models, methods.v2_operations(served)),
        _with(v2_operations.v1_section(), methods.v1_operations(served)),
    ]
    if names:
        named = (openai, anthropic, ollama, llm_serving)
        found += [tgi.section(), tei.section(), cohere.section()]
        found += [protocol.section(names[0]) for protocol in named]
    return [*found, server.section()]


def _with(section: Section, more: Iterable[Operation]) -> Section:
    return replace(section, operations=(*more, *section.operations))
