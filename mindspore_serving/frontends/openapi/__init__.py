"""What GET /openapi.json shows: what a caller of this server may send.

The document is made from the rows of routes, and from the signatures of what is served now.  It is
made on a thread of its own, and anew only when that has changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from mindspore_serving.aio import on_thread
from mindspore_serving.frontends.mindspore import routes as mindspore
from mindspore_serving.frontends.openapi import methods
from mindspore_serving.frontends.openapi.document import Section, to_document
from mindspore_serving.frontends.openapi.methods import Served
from mindspore_serving.frontends.operation import MODEL
from mindspore_serving.frontends.routes import LANGUAGE, LOADING, MEMORY, HttpRoute
from mindspore_serving.frontends.v2 import routes as v2
from mindspore_serving.frontends.v2 import v1
from mindspore_serving.frontends.v2.inference import V2


@dataclass(frozen=True, slots=True)
class Visible:
    """What a server has that the document shows: whether requests need keys, and whether errors
    of the classic protocol have status codes.
    """

    has_keys: bool = False
    has_codes: bool = True


class Described:
    """The document of `rows` and of what is served now."""

    def __init__(self, v2: V2, visible: Visible, rows: Sequence[HttpRoute]) -> None:
        self.v2 = v2
        self.visible = visible
        self.rows = rows
        self._of: tuple[object, ...] = ()  # what the document that is kept is of
        self._kept = "", b""

    async def render(self) -> tuple[str, bytes]:
        """Its tag, and its JSON."""
        state = self.v2.state
        models = state.models.all() if state.control.has_language_models else []
        served = methods.look(state), tuple(model.name for model in models)
        if served != self._of:
            self._kept = await on_thread("openapi", self._make, *served)
            self._of = served
        return self._kept

    def _make(self, served: tuple[Served, ...], names: tuple[str, ...]) -> tuple[str, bytes]:
        sections = sections_of(self, served, names)
        model = names[0] if names else ""
        document = to_document(sections, has_keys=self.visible.has_keys, model=model)
        body = msgspec.json.encode(document)
        return f'"{sha256(body).hexdigest()[:16]}"', body


def sections_of(
    described: Described, served: tuple[Served, ...], names: tuple[str, ...]
) -> list[Section]:
    """What can be called where `served` are the servables and `names` the language models."""
    present = _present(described.v2, names)
    calls = {
        mindspore.PROTOCOL: methods.classic_methods(served, has_codes=described.visible.has_codes),
        v2.PROTOCOL: methods.v2_methods(served),
        v1.PROTOCOL: methods.v1_methods(served),
    }
    found = []
    for protocol in dict.fromkeys([*calls, *(row.protocol for row in described.rows)]):
        rows = (row for row in described.rows if row.protocol is protocol and row.summary)
        operations = (*calls.get(protocol, ()), *(row for row in rows if row.needs in present))
        if operations:
            about = protocol.about.replace(MODEL, names[0] if names else "")
            found.append(Section(protocol.title, about, protocol.errors, operations))
    return found


def _present(v2: V2, names: Sequence[str]) -> set[str]:
    """What a server has that rows may need."""
    repository = v2.state.repository
    has = {
        "": True,
        LANGUAGE: bool(names),
        LOADING: repository is not None and repository.is_allowed,
        MEMORY: v2.memory.is_enabled,
    }
    return {name for name, is_there in has.items() if is_there}
