"""URLs among the arguments of commands.

It knows which texts are URLs, not what is behind them.
"""

import re
from dataclasses import fields
from typing import Any

from mindspore_serving.errors import InvalidInputs

SERVER_URL = "http://127.0.0.1:1500"  # of a server with the default options

_ADDRESS = re.compile(r"(localhost|[\d.]+|\[[\da-fA-F:.]+\]):\d+")


def is_url(text: str) -> bool:
    """Return whether a text is a URL or an address, which no name of a servable looks like."""
    return "://" in text or text.startswith("unix:") or bool(_ADDRESS.fullmatch(text))


def check_first(kind: type[Any], values: dict[str, Any]) -> None:
    """Raise InvalidInputs if an argument of the settings `kind` after URL is a URL."""
    metavars = {each.name: each.metadata.get("metavar") for each in fields(kind)}
    arguments = {name: metavar for name, metavar in metavars.items() if metavar}
    if arguments.pop("url", None) is None:
        return
    for name, metavar in arguments.items():
        if is_url(str(values[name])):
            raise InvalidInputs(
                f"{values[name]!r} is a URL, where {metavar} is expected: the arguments are "
                f"[URL] {' '.join(arguments.values())}"
            )
