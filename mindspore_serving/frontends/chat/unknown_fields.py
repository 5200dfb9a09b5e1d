"""Unknown fields of requests: named to the client and once in the log.

A field is refused if its name is a misspelling of a known one, or the name that another protocol
has for it.  Knows no protocol's errors.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.errors import InvalidField, misspelt
from mindspore_serving.frontends.chat.field_names import advice_on, names_here, remark_on

HEADER = "x-ignored-fields"
_MAX_NAMED = 16  # names per request
_MAX_LOGGED = 256  # names per route
_PRINTABLE_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_OF_OTHER_SERVERS = frozenset({"models"})  # fields of other servers, no misspellings
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class KnownFields:
    """Fields that a route knows: those of struct `kind`, and the names in `ignored`.

    `where` names the route in the log.  `inside` has the fields of an object in a field of the
    body, by the name of that field: Ollama's `options`, TGI's `parameters`.
    """

    def __init__(
        self,
        where: str,
        kind: type[msgspec.Struct],
        ignored: Iterable[str] = (),
        *,
        inside: "Mapping[str, KnownFields] | None" = None,
    ) -> None:
        self.effective = {field.encode_name for field in msgspec.structs.fields(kind)} - {*ignored}
        self._known = self.effective | {*ignored}
        self._inside = inside or {}
        # Agents send the same unknown fields with each request.
        self._find_misspelt = lru_cache(_MAX_LOGGED)(lambda name: misspelt(name, self.effective))
        self._where = where
        self._logged: set[str] = set()

    def find_unknown(self, body: object, path: str = "") -> tuple[str, ...]:
        """Return the unknown fields of `body`, up to 16; none if it is no JSON object.

        `path` is where the object is in the body of the request, such as "options.".  Raises
        InvalidField for a field that `body` lacks, if an unknown name is a misspelling of its name
        or its name in another protocol.
        """
        return self.find_in(_decode(body), path)

    def find_in(self, object_: Mapping[str, object], path: str = "") -> tuple[str, ...]:
        """Return what `find_unknown` does, of an object whose fields were read."""
        unknown: list[str] = []
        for name in object_:
            if name not in self._known and len(unknown) < _MAX_NAMED:
                self._check(name, object_, path)
                unknown.append(name)
        self._report(unknown)
        names = [f"{path}{name}" if _PRINTABLE_NAME.fullmatch(name) else "?" for name in unknown]
        for outer, fields in self._inside.items():
            names += fields.find_unknown(object_.get(outer), f"{outer}.")
        return tuple(names[:_MAX_NAMED])

    def _check(self, name: str, object_: Mapping[str, object], path: str) -> None:
        if name in _OF_OTHER_SERVERS:
            return
        advice = self._meant(name, object_, path) or advice_on(name, self._known, object_)
        for outer, fields in self._inside.items():
            advice = advice or fields._meant(name, _decode(object_.get(outer)), f"{outer}.")
        if advice:
            shown = name if _PRINTABLE_NAME.fullmatch(name) else repr(name[:64])
            raise InvalidField(f"{path}{name}", text=f"{path}{shown} is not known: {advice}")

    def _meant(self, name: str, object_: Mapping[str, object], path: str) -> str:
        """Return the proposal of a field that `object_` lacks, "" if there is none."""
        names = names_here(name, self.effective) or [self._find_misspelt(name)]
        if not names[0] or any(other in object_ for other in names):
            return ""
        return f"did you mean {path}{names[0]}{remark_on(name)}?"

    def _report(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(name)
                log.warning("%s: the field %s is not known and ignored", self._where, name[:64])


_logged_kinds: set[tuple[str, str]] = set()


def report_kinds(where: str, kinds: Iterable[str]) -> None:
    """Log, once each, the kinds of tools and items that models do not see; `where` is a route."""
    for kind in kinds:
        if (where, kind) not in _logged_kinds and len(_logged_kinds) < _MAX_LOGGED:
            _logged_kinds.add((where, kind))
            log.warning("%s: the model does not see what has the type %s", where, kind[:64])


def _decode(body: object) -> Mapping[str, object]:
    """Return the fields of a JSON object with raw values; empty for anything else."""
    if not isinstance(body, bytes | msgspec.Raw):
        return {}
    try:
        return _OBJECT.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def name_ignored(response: Response, fields: Iterable[str]) -> None:
    """Add `fields` to the header that names ignored fields."""
    named = [response.headers[HEADER]] if HEADER in response.headers else []
    if names := [*named, *fields]:
        response.headers[HEADER] = ", ".join(names)
