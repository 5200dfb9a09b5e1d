"""Connecting to another machine, with or without TLS, and the token shared by master and nodes."""

import asyncio
import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path

from mindspore_serving.cluster import node_messages
from mindspore_serving.cluster.node_connection import NodeConnection, connect
from mindspore_serving.cluster.node_messages import preamble
from mindspore_serving.cluster.worker_process import TOKEN
from mindspore_serving.errors import InvalidInputs, StartError, Temporary
from mindspore_serving.process.vocabulary import hello

DIAL_SECONDS = 10.0
_MIN_LENGTH = 16  # characters of a token


class CannotReach(Temporary):
    """The machine does not answer now; it may do so later."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """Address and credentials for joining a master.

    `context` is None for a connection without TLS; `token` is "" if client certificates are enough.
    """

    host: str
    port: int
    context: ssl.SSLContext | None
    token: str = field(repr=False)

    async def dial(self) -> NodeConnection:
        """Connect to the master and send preamble and `Hello`.

        Raises StartError if a retry cannot help, else CannotReach.
        """
        connection = await dial("master", self.host, self.port, self.context)
        connection.writer.write(preamble(self.token))
        connection.send(hello(node_messages))
        return connection


async def dial(role: str, host: str, port: int, context: ssl.SSLContext | None) -> NodeConnection:
    """Connect to a machine; `role` ("master") names it in errors.

    Raises StartError if a retry cannot help, else CannotReach.
    """
    where = f"the {role} at {host}:{port}"
    try:
        return await connect(host, port, context, DIAL_SECONDS)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        raise StartError(f"the certificate of {where} is not trusted: {why}") from None
    except ssl.SSLEOFError:
        raise CannotReach(f"{where} closed the connection") from None
    except ssl.SSLError as error:
        raise StartError(f"{where} does not speak our TLS: {error.reason or error}") from None
    except asyncio.TimeoutError:
        raise CannotReach(f"{where} does not answer within {DIAL_SECONDS:g} s") from None
    except OSError as error:
        raise CannotReach(f"{where} cannot be reached: {error.strerror or error}") from None


def read_token(path: "str | os.PathLike[str] | None") -> str:
    """Return the token in the file `path`, or of the environment if it is None; "" for no token.

    Raises StartError if the file cannot be read or every user can read it, InvalidInputs if the
    token is too short.
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
    if len(token) < _MIN_LENGTH or not (token.isascii() and token.isprintable()):
        text = f"at least {_MIN_LENGTH} printable ASCII characters, as of `openssl rand -hex 32`"
        raise InvalidInputs(f"the token in {where} cannot be used: expected {text}")
    return token
