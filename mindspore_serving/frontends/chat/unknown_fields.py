"""Unknown fields of requests: named to the client and once in the log.

A field that is close to a known name is refused as a misspelling.  Knows no protocol's errors.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.errors import InvalidField

HEADER = "x-ignored-fields"
_MIN_RATIO = 0.9  # difflib's ratio: about one letter of ten differs
_MAX_NAMED = 16  # names per request
_MAX_LOGGED = 256  # names per route
_PRINTABLE_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_OF_OTHER_SERVERS = frozenset({"models"})  # fields of other servers, no misspellings
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class KnownFields:
    """Fields that a route knows: those of struct `kind`, and the names in `ignored`.

    `where` names the route in the log.
    """

    def __init__(self, where: str, kind: type[msgspec.Struct], ignored: Iterable[str] = ()) -> None:
        known = {field.encode_name for field in msgspec.structs.fields(kind)} | {*ignored}
        self._by_letters = {_letters(name): name for name in sorted(known)}
        self._known = known
        self._where = where
        self._logged: set[str] = set()

    def find_unknown(self, body: bytes | msgspec.Raw) -> tuple[str, ...]:
        """Return the unknown fields of `body`, up to 16; none if it is no JSON object.

        Raises InvalidField for a name close to a known field that `body` lacks.
        """
        try:
            object_: Mapping[str, object] = _OBJECT.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ()
        unknown: list[str] = []
        for name in object_:
            if name not in self._known and len(unknown) < _MAX_NAMED:
                self._check(name, object_)
                unknown.append(name)
        self._report(unknown)
        return tuple(name if _PRINTABLE_NAME.fullmatch(name) else "?" for name in unknown)

    def _check(self, name: str, object_: Mapping[str, object]) -> None:
        letters = _letters(name[:64])
        close = get_close_matches(letters, self._by_letters, 1, _MIN_RATIO)
        meant = self._by_letters[close[0]] if close else ""
        if meant and meant not in object_ and name not in _OF_OTHER_SERVERS:
            shown = name if _PRINTABLE_NAME.fullmatch(name) else repr(name[:64])
            raise InvalidField(name, text=f"{shown} is not known: did you mean {meant}?")

    def _report(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(name)
                log.warning("%s: the field %s is not known and ignored", self._where, name[:64])


def _letters(name: str) -> str:
    """Return `name` without its spelling's conventions: maxTokens and max_tokens are equal."""
    return name.replace("_", "").replace("-", "").lower()


def name_ignored(response: Response, fields: Iterable[str]) -> None:
    """Add `fields` to the header that names ignored fields."""
    named = [response.headers[HEADER]] if HEADER in response.headers else []
    if names := [*named, *fields]:
        response.headers[HEADER] = ", ".join(names)
