"""The secret that a master and its nodes share.  It is never an argument: every user sees those."""

import os
import stat
from pathlib import Path

from mindspore_serving.errors import InvalidInputs, StartError

TOKEN = "MINDSPORE_SERVING_TOKEN"  # in the environment
_LEAST = 16


def read_token(path: "str | os.PathLike[str] | None") -> str:
    """The token in the file `path`, else that of the environment; "" if there is none.

    Raises StartError if the file cannot be read, or every user can; InvalidInputs if it is short.
    """
    if path is None:
        token, where = os.environ.get(TOKEN, "").strip(), TOKEN
        return _checked(token, where) if token else ""
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"the token file cannot be read: {error}") from None
    if stat.S_ISREG(mode) and mode & 0o007:
        raise StartError(f"every user may read the token in {path}: chmod o= it")
    return _checked(token, str(path))


def _checked(token: str, where: str) -> str:
    if len(token) < _LEAST or not (token.isascii() and token.isprintable()):
        text = f"at least {_LEAST} printable ASCII characters, such as `openssl rand -hex 32` gives"
        raise InvalidInputs(f"the token in {where} cannot be used: expected {text}")
    return token
