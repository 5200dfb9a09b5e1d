"""Fields of a request that no route has: reported to the client and once in the log, or refused
where another field is nearly called so.  Knows no protocol's errors.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.errors import InvalidField

HEADER = "x-ignored-fields"
_ALIKE = 0.9  # as difflib counts: a letter of ten
_MOST, _MOST_LOGGED = 16, 256  # names of one request, and of one route
_SHOWN = re.compile(r"[\w.-]{1,64}", re.ASCII)
_ELSEWHERE = frozenset({"models"})  # fields of other servers that are no mistakes
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class KnownFields:
    """The fields of the JSON object that `where` takes: those of `kind`, and those that are
    `ignored` knowingly.
    """

    def __init__(self, where: str, kind: type[msgspec.Struct], ignored: Iterable[str] = ()) -> None:
        known = {one.encode_name for one in msgspec.structs.fields(kind)} | {*ignored}
        self._by_letters = {_letters(name): name for name in sorted(known)}
        self._known = known
        self._where = where
        self._logged: set[str] = set()

    def find_unknown(self, body: bytes | msgspec.Raw) -> tuple[str, ...]:
        """The fields of `body` that are not known, up to 16; none of what is no object.  Raises
        InvalidField for one that is nearly called like a known one, which is not there.
        """
        try:
            given: Mapping[str, object] = _OBJECT.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ()
        found: list[str] = []
        for name in given:
            if name not in self._known and len(found) < _MOST:
                self._check(name, given)
                found.append(name)
        self._report(found)
        return tuple(name if _SHOWN.fullmatch(name) else "?" for name in found)

    def _check(self, name: str, given: Mapping[str, object]) -> None:
        letters = _letters(name[:64])
        close = get_close_matches(letters, self._by_letters, 1, _ALIKE)
        meant = self._by_letters[close[0]] if close else ""
        if meant and meant not in given and name not in _ELSEWHERE:
            shown = name if _SHOWN.fullmatch(name) else repr(name[:64])
            raise InvalidField(name, text=f"{shown} is not known: did you mean {meant}?")

    def _report(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._logged and len(self._logged) < _MOST_LOGGED:
                self._logged.add(name)
                log.warning("%s: the field %s is not known and ignored", self._where, name[:64])


def _letters(name: str) -> str:
    """`name` as all ways to write it have it: maxTokens is max_tokens."""
    return name.replace("_", "").replace("-", "").lower()


def name_ignored(response: Response, fields: Iterable[str]) -> None:
    """Name `fields` in the answer, behind others that it names."""
    named = [response.headers[HEADER]] if HEADER in response.headers else []
    if found := [*named, *fields]:
        response.headers[HEADER] = ", ".join(found)
