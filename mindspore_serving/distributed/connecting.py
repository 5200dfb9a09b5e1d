"""The connection to the worker at the end of a script or agent: connect, greet, request."""

import concurrent.futures
import os
import select
import socket
import time

import msgspec

from mindspore_serving.distributed import messages, security, tunnel
from mindspore_serving.distributed.keepalive import keep_alive, set_send_timeout
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

CONNECT_SECONDS = 5.0  # timeout of one attempt
CLOSE_SECONDS = 5.0  # timeout of encrypting and sending buffered data
ANSWER_SECONDS = 30.0  # timeout of the worker's answer; its event loop is never busy for long


class Stopped(NoRestart):
    """The servable was stopped."""


class JoinRefusal(StartError):
    """The worker refuses this script or agent; it may accept another."""


class GangConnection(BlockingChannel[ToPeer]):
    """A connection to the worker after authentication; `plan` is the worker's answer to it."""

    def __init__(self, stream: socket.socket, relay: tunnel.Relay | None = None) -> None:
        """Authenticate over `stream`; `relay` is the task that encrypts it, None without TLS."""
        super().__init__(stream, ToPeer)
        self._relay = relay
        self.plan = self._greet()

    def close(self) -> None:
        """Close the connection after sending buffered data, within CLOSE_SECONDS."""
        super().close()
        if self._relay is not None:
            concurrent.futures.wait([self._relay], CLOSE_SECONDS)

    def ask(self, message: msgspec.Struct) -> None:
        """Send a request and wait for `Ready`.  Raises StartError on refusal or timeout."""
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
        """Wait for the next message and return it.

        Raises StartError if it is not of `kind`, or OSError if the worker has closed the connection
        or does not answer within ANSWER_SECONDS.
        """
        end = time.monotonic() + ANSWER_SECONDS
        poll = select.poll()
        poll.register(self._stream.fileno(), select.POLLIN)
        try:
            while (left := end - time.monotonic()) > 0:
                if received := self.receive(wait=False):
                    message, *self._pending = received
                    if isinstance(message, kind):
                        return message
                    raise _unexpected(message)
                poll.poll(left * 1000)
        except EOFError:
            raise ConnectionError("the worker has closed the connection") from None
        except (msgspec.DecodeError, TooLarge) as error:
            text = f"the listener there is no worker of a distributed servable: {error}"
            raise StartError(text) from error
        raise TimeoutError(f"the worker has not answered within {ANSWER_SECONDS:g} s")


def connect(address: str) -> GangConnection:
    """Connect to the worker at `address`, "ip:port", and authenticate.

    Raises OSError if nobody listens there, StartError if the worker refuses us or cannot be
    trusted (its certificate, for example).
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
    stream = socket.create_connection((host, port), CONNECT_SECONDS)
    keep_alive(stream)
    set_send_timeout(stream)
    return stream


def _unexpected(message: ToPeer) -> StartError:
    if isinstance(message, Failed):
        return JoinRefusal(f"the worker refuses: {message.text}")
    if isinstance(message, Exit):
        return Stopped("the servable is stopped")
    return StartError(f"the worker sent {type(message).__name__} out of turn")
