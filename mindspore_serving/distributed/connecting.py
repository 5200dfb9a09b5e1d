"""A script's or an agent's end of the connection to the worker: finds it, greets, waits."""

import concurrent.futures
import os
import select
import socket
import time

import msgspec

from mindspore_serving.distributed import messages, security, tunnel
from mindspore_serving.distributed.keeping import end_when_unanswered, keep_alive
from mindspore_serving.distributed.messages import (
    Challenge,
    Plan,
    Proof,
    ToPeer,
)
from mindspore_serving.errors import StartError, TooLarge
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.supervisor import NoRestart
from mindspore_serving.process.vocabulary import Exit, Failed, Ready, fingerprint

CONNECTING = 5.0  # seconds for one try
CLOSING = 5.0  # seconds to encrypt and send what is left
ANSWERING = 30.0  # seconds for an answer of the worker, whose loop is never busy for long


class Stopped(NoRestart):
    """The servable is stopped for good."""


class JoinRefusal(StartError):
    """The worker does not want us; others may still come."""


class GangConnection(BlockingChannel[ToPeer]):
    """A connection that has greeted: `plan` is what the worker answered."""

    def __init__(self, stream: socket.socket, relay: tunnel.Relay | None = None) -> None:
        super().__init__(stream, ToPeer)
        self._relay = relay  # with TLS
        self.plan = self._greet()

    def close(self) -> None:
        super().close()
        if self._relay is not None:
            concurrent.futures.wait([self._relay], CLOSING)

    def ask(self, message: msgspec.Struct) -> None:
        """Send what is to be accepted.  Raises StartError if it is refused, or nobody answers."""
        try:
            self.send(message)
            self._expect(Ready)
        except OSError as error:
            raise StartError(str(error)) from error

    def _greet(self) -> Plan:
        challenge = self._expect(Challenge)
        assert isinstance(challenge, Challenge)
        proof = security.prove(security.read_token(os.environ), challenge.nonce)
        self.send(Proof(fingerprint(messages), "", proof))
        plan = self._expect(Plan)
        assert isinstance(plan, Plan)
        return plan

    def _expect(self, kind: type[ToPeer]) -> ToPeer:
        """The next message, which is of this kind.  Raises StartError, or OSError if the worker
        has ended the connection or does not answer.
        """
        end = time.monotonic() + ANSWERING
        poll = select.poll()
        poll.register(self._stream.fileno(), select.POLLIN)
        try:
            while (left := end - time.monotonic()) > 0:
                if received := self.receive(wait=False):
                    message, *self._kept = received
                    if isinstance(message, kind):
                        return message
                    raise _unexpected(message)
                poll.poll(left * 1000)
        except EOFError:
            raise ConnectionError("the worker has ended the connection") from None
        except (msgspec.DecodeError, TooLarge) as error:
            text = f"what listens there is no worker of a distributed servable: {error}"
            raise StartError(text) from error
        raise TimeoutError(f"the worker has not answered within {ANSWERING:g} s")


def connect(address: str) -> GangConnection:
    """Greet the worker at `address`, "ip:port".  Raises OSError if nobody listens there, or no
    longer, and StartError if we are refused, or do not want it: its certificate, say.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = security.of_agent(os.environ)
    if context is None:
        stream, relay = _plain(host, int(port)), None
    else:
        stream, relay = tunnel.connect(host, int(port), context)
    try:
        return GangConnection(stream, relay)
    except BaseException:
        stream.close()
        raise


def _plain(host: str, port: int) -> socket.socket:
    stream = socket.create_connection((host, port), CONNECTING)
    keep_alive(stream)
    end_when_unanswered(stream)
    return stream


def _unexpected(message: ToPeer) -> StartError:
    if isinstance(message, Failed):
        return JoinRefusal(f"the worker refuses: {message.text}")
    if isinstance(message, Exit):
        return Stopped("the servable is stopped")
    return StartError(f"the worker sent {type(message).__name__} out of turn")
