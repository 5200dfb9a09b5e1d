"""The document of GET /openapi.json.

It is made from the table of routes and the signatures of deployed servables, on a thread, and only
when these have changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from mindspore_serving.aio import on_thread
from mindspore_serving.frontends.mindspore import routes as mindspore
from mindspore_serving.frontends.openapi import methods
from mindspore_serving.frontends.openapi.document import Section, to_document
from mindspore_serving.frontends.openapi.methods import DescribedServable
from mindspore_serving.frontends.operation import MODEL
from mindspore_serving.frontends.routes import LANGUAGE, LOADING, MEMORY, HttpRoute
from mindspore_serving.frontends.v2 import routes as v2
from mindspore_serving.frontends.v2 import v1
from mindspore_serving.frontends.v2.inference import V2


@dataclass(frozen=True, slots=True)
class DocumentOptions:
    """Options of a server that the document shows.

    `has_keys`: requests need keys.  `has_codes`: errors of the classic protocol have status codes.
    """

    has_keys: bool = False
    has_codes: bool = True


class OpenApiDocument:
    """The document of the routes `rows` and the deployed servables."""

    def __init__(self, v2: V2, visible: DocumentOptions, rows: Sequence[HttpRoute]) -> None:
        self.v2 = v2
        self.visible = visible
        self.rows = rows
        self._source: tuple[object, ...] = ()  # of the cached document
        self._cached = "", b""

    async def render(self) -> tuple[str, bytes]:
        """Return the ETag and the JSON of the document."""
        state = self.v2.state
        models = state.models.all() if state.control.has_language_models else []
        served = methods.list_servables(state), tuple(model.name for model in models)
        if served != self._source:
            self._cached = await on_thread("openapi", self._make, *served)
            self._source = served
        return self._cached

    def _make(
        self, served: tuple[DescribedServable, ...], names: tuple[str, ...]
    ) -> tuple[str, bytes]:
        sections = sections_of(self, served, names)
        model = names[0] if names else ""
        document = to_document(sections, has_keys=self.visible.has_keys, model=model)
        body = msgspec.json.encode(document)
        return f'"{sha256(body).hexdigest()[:16]}"', body


def sections_of(
    described: OpenApiDocument, served: tuple[DescribedServable, ...], names: tuple[str, ...]
) -> list[Section]:
    """Return the sections for the servables `served` and the language models `names`."""
    present = _present(described.v2, names)
    calls = {
        mindspore.PROTOCOL: methods.classic_methods(served, has_codes=described.visible.has_codes),
        v2.PROTOCOL: methods.v2_methods(served),
        v1.PROTOCOL: methods.v1_methods(served),
    }
    sections = []
    for protocol in dict.fromkeys([*calls, *(row.protocol for row in described.rows)]):
        rows = (row for row in described.rows if row.protocol is protocol and row.summary)
        operations = (*calls.get(protocol, ()), *(row for row in rows if row.needs in present))
        if operations:
            about = protocol.about.replace(MODEL, names[0] if names else "")
            sections.append(Section(protocol.title, about, protocol.errors, operations))
    return sections


def _present(v2: V2, names: Sequence[str]) -> set[str]:
    """Return the features of a server, which rows can need."""
    repository = v2.state.repository
    has = {
        "": True,
        LANGUAGE: bool(names),
        LOADING: repository is not None and repository.is_allowed,
        MEMORY: v2.memory.is_enabled,
    }
    return {name for name, is_present in has.items() if is_present}
