"""How another machine is reached, by TLS or without; a node reaches its master so."""

import asyncio
import ssl
from dataclasses import dataclass, field

from mindspore_serving.cluster import node_messages
from mindspore_serving.cluster.node_connection import Connection, connect
from mindspore_serving.cluster.node_messages import preamble
from mindspore_serving.errors import StartError, Temporary
from mindspore_serving.process.vocabulary import hello

DIAL_SECONDS = 10.0


class CannotReach(Temporary):
    """The master does not answer; it may do so later."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """`context` is None for a connection without TLS; `token` is "" if certificates are enough."""

    host: str
    port: int
    context: ssl.SSLContext | None
    token: str = field(repr=False)

    async def dial(self) -> Connection:
        """Raises StartError if trying again cannot help, else CannotReach."""
        connection = await dial("master", self.host, self.port, self.context)
        connection.writer.write(preamble(self.token))
        connection.send(hello(node_messages))
        return connection


async def dial(what: str, host: str, port: int, context: ssl.SSLContext | None) -> Connection:
    """A connection to the machine there; `what` is its name in errors.  Raises StartError if trying
    again cannot help, else CannotReach."""
    where = f"the {what} at {host}:{port}"
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
