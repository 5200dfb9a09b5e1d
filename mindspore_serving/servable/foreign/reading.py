"""Reading of the files of other servers, within limits."""

import json
import os
from typing import Any

from mindspore_serving.errors import StartError


def read_text(path: str, max_size: int) -> str:
    """Return the text of a file.  Raises StartError for one that is too large or no UTF-8."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            data = file.read(max_size + 1)
    except OSError as error:
        raise StartError(f"{name} cannot be read: {error}") from None
    return decode(name, data, max_size)


def decode(name: str, data: bytes, max_size: int) -> str:
    """Return the text of `data`.  Raises StartError naming the file."""
    if len(data) > max_size:
        raise StartError(f"{name} has more than {max_size} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StartError(f"{name} is not UTF-8 text") from None


def parse_json(name: str, text: str) -> dict[str, Any]:
    """Return the JSON object in `text`.  Raises StartError naming the file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StartError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise StartError(f"{name} is not a JSON object")
    return value


def inside(name: str, root: str, path: str) -> str:
    """Return the path of a file below `root`; `name` is the file that names it.

    Raises StartError for a path that leads out of `root`, also by links, or to nothing.
    """
    joined = os.path.normpath(os.path.join(root, path))
    real_root = os.path.realpath(root)
    is_inside = os.path.realpath(joined).startswith(real_root + os.sep)
    if os.path.isabs(path) or not is_inside:
        raise StartError(f"{name} names {path!r:.200}, expected a path inside '{root}'")
    if not os.path.exists(joined):
        raise StartError(f"{name} names {path!r:.200}, but there is no '{joined}'")
    return joined
