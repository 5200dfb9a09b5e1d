"""URL of a classic RESTful request: /model/NAME[/version/N]:METHOD.

As in the original server, the words may be in other positions and order.  It knows no servables.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote

from mindspore_serving.errors import InvalidInputs

_VERSION_LIMIT = 2**32 - 1
_LEADING_NUMBER = re.compile(r"\s*([+-]?)0*([0-9]+)", re.ASCII)


class Route(NamedTuple):
    """Method that a URL names; `version` 0 is the newest."""

    servable: str
    version: int
    method: str


def parse_path(path: str | bytes) -> Route:
    """Parse a request target; a query or fragment is ignored, %XX is decoded.

    Raises InvalidInputs naming the missing or wrong part.
    """
    text = path.decode("utf-8", "replace") if isinstance(path, bytes) else path
    location, _, method = text.partition("?")[0].partition("#")[0].partition(":")
    segments = location.split("/")
    name_at = _find(segments, "model") + 1
    name = "".join(segments[name_at : name_at + 1]) if name_at else ""
    if not name:
        raise InvalidInputs("please check url, the keyword:[model] must contain.")
    if not method:
        raise InvalidInputs(
            "please check url, the keyword:[service method] must contain. A URL is "
            "/model/NAME:METHOD or /model/NAME/version/N:METHOD"
        )
    segments[name_at] = ""  # a servable may be called "version"
    version_at = segments.index("version") + 1 if "version" in segments else 0
    version = _to_version("".join(segments[version_at : version_at + 1])) if version_at else 0
    return Route(_unquote(name), version, _unquote(method))


def _find(segments: list[str], word: str) -> int:
    """Return the index of `word`, or else of a segment that ends with it; -1 if none.

    /my-model/NAME is an example of the latter.
    """
    if word in segments:
        return segments.index(word)
    return next((i for i, segment in enumerate(segments) if segment.endswith(word)), -1)


def _to_version(text: str) -> int:
    """Return the number that `text` starts with: the original server read "1abc" as 1."""
    text = _unquote(text)
    match = _LEADING_NUMBER.match(text)
    if match is None:
        raise InvalidInputs(
            "please check url, the keyword:[version] value invalid, request version number "
            f"{text[:64]}, expected a number"
        )
    sign, digits = match.groups()
    if (sign == "-" and digits != "0") or len(digits) > 10 or int(digits) >= _VERSION_LIMIT:
        raise InvalidInputs(
            "please check url, version number range failed, request version number "
            f"{text[:64]}; accepted are 0 to {_VERSION_LIMIT - 1}"
        )
    return int(digits)


def _unquote(text: str) -> str:
    return unquote(text) if "%" in text else text
