"""The worker's end of a connection to a script or agent: authentication, frames, limits and TLS.

Its owner gets the messages and makes all decisions.
"""

import asyncio
import secrets
import ssl
from contextlib import suppress
from typing import Protocol, cast

import msgspec

from mindspore_serving import log
from mindspore_serving.distributed import messages, security
from mindspore_serving.distributed.keepalive import keep_alive
from mindspore_serving.distributed.messages import (
    MEDIUM,
    SMALL,
    Challenge,
    Proof,
    ToGang,
)
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.frames import MAX_FRAME, FrameDecoder
from mindspore_serving.process.vocabulary import Beat, Failed, fingerprint

MAX_BEATS = 100  # heartbeats per second; a peer that sends more is not read for a second
MAX_REASON = 4096  # characters of a reason
CLOSE_SECONDS = 1.0  # within which a script or an agent closes its end after the worker has
_CHUNK = 1 << 18  # bytes decrypted at a time


class Owner(Protocol):
    """The receiver of messages and events of peers."""

    def on_opened(self, peer: "GangPeer") -> None: ...

    def on_message(self, peer: "GangPeer", message: ToGang) -> None: ...

    def on_closed(self, peer: "GangPeer") -> None: ...


class GangPeer(asyncio.Protocol):
    """A script, or the agent of `rank` once it has joined."""

    def __init__(self, owner: Owner, secret: bytes, context: ssl.SSLContext | None = None) -> None:
        """Create the protocol of a new connection.

        Args:
            owner: gets the messages.
            secret: the token, b"" for none.
            context: None without TLS.
        """
        self.rank: int | None = None
        self.is_authenticated = False
        self.silent_for = 0.0  # seconds, counted by the owner; before authentication: its age
        self.why = ""  # the reason of a refusal
        self.address = ""
        self._num_beats, self._second = 0, 0.0  # in the second that began at `_second`
        self._owner = owner
        self._secret = secret
        self._nonce = secrets.token_bytes(security.NONCE)
        self._frames: FrameDecoder[ToGang] = message_decoder(ToGang, SMALL)
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.get_running_loop().create_future()  # done once both ends are closed
        self._encryption = Encryption(context) if context is not None else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        keep_alive(transport.get_extra_info("socket"))
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        if self._encryption is None:
            self._challenge()
        self._owner.on_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return  # closed
        if self.is_authenticated:
            self.silent_for = 0.0
        try:
            for message in self._frames.feed(self._decrypt(data)):
                if self._transport is None:
                    return  # refused
                self._num_beats += isinstance(message, Beat)
                if self.is_authenticated:
                    self._owner.on_message(self, message)
                else:
                    self._greet(message)
        except (msgspec.DecodeError, ServingError) as error:
            self.refuse(str(error))
        except ssl.SSLError as error:
            log.warning("refused a script or an agent: its TLS handshake failed: %s", error)
            self.close()
        if self._num_beats:
            self._slow_down()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lost.set_result(None)
        self._owner.on_closed(self)

    def _slow_down(self) -> None:
        """Pause reading for a second if this one had MAX_BEATS heartbeats."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._second >= 1:
            self._second = now
        elif self._num_beats < MAX_BEATS:
            return
        if self._num_beats >= MAX_BEATS and self._transport is not None:
            self._transport.pause_reading()
            loop.call_later(1, self._resume)
        self._num_beats = 0

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def expect_tensors(self) -> None:
        """Accept large messages from now on."""
        self._frames.limit = MAX_FRAME

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; do nothing once the connection is closed."""
        self.write(encode(message))

    def write(self, frame: bytes) -> None:
        """Send an encoded frame; do nothing once the connection is closed."""
        if self._transport is None:
            return
        if self._encryption is None:
            self._transport.write(frame)
        elif self._encryption.is_ready:
            self._transport.write(self._encryption.encrypt(frame))

    def refuse(self, text: str) -> None:
        """Send the reason of a refusal, and close the connection."""
        text = text[:MAX_REASON]
        log.warning("refused a script or an agent: %s", text)
        self.why = f"was refused: {text}"
        self.send(Failed(text))
        self.close()

    def dismiss(self) -> None:
        """Close a connection that has not authenticated in time."""
        if self._encryption is not None and not self._encryption.has_begun:
            self._encryption = None  # a peer without TLS waits for our first message
            self.refuse(f"the worker requires TLS: set {security.AUTHORITY} for agents too")
        self.abort()

    def abort(self) -> None:
        """Close the connection at once, dropping unsent data."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after sending buffered data; handle no more messages.

        What the peer still sends is read and dropped, for CLOSE_SECONDS: closing a socket with
        unread data resets the connection, and the peer could lose our last message.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if not self.is_authenticated:  # it could fill our table of descriptors
            transport.close()
            return
        transport.resume_reading()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, transport.abort)
        with suppress(OSError):  # the peer has just reset the connection
            transport.write_eof()

    def _challenge(self) -> None:
        self.send(Challenge(self._nonce))

    def _decrypt(self, data: bytes) -> bytes:
        """Decrypt received data, and send what TLS answers.  Raises ssl.SSLError."""
        tls = self._encryption
        if tls is None:
            return data
        was_ready = tls.is_ready
        try:
            return tls.receive(data)
        finally:
            if self._transport is not None:
                self._transport.write(tls.to_send())
            if tls.is_ready and not was_ready:
                self._challenge()

    def _greet(self, message: ToGang) -> None:
        if not isinstance(message, Proof):
            raise InvalidInputs("expected Proof as the first message")
        if message.fingerprint != (ours := fingerprint(messages)):
            raise InvalidInputs(
                f"the worker speaks protocol {ours} and the agent protocol {message.fingerprint}: "
                "install the same version of mindspore-serving on all machines"
            )
        if not security.is_proof(message.proof, self._secret, self._nonce):
            raise InvalidInputs(
                f"wrong token: {security.TOKEN} should be the same for the worker and all agents"
            )
        self.is_authenticated = True
        self._frames.limit = MEDIUM
        self._owner.on_message(self, message)


class Encryption:
    """The worker's end of TLS over one connection: bytes in, bytes out.

    The TLS of an event loop hides a connection until its handshake is over: such connections could
    not be counted, nor be told why they are refused.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.has_begun = False  # data was received
        self.is_ready = False  # the handshake is over, and `encrypt` may be called
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def receive(self, data: bytes) -> bytes:
        """Decrypt `data`; afterwards `to_send` has the bytes that TLS answers.

        Raises ssl.SSLError if the data is not TLS, or the handshake fails.
        """
        self.has_begun = True
        self._incoming.write(data)
        content = bytearray()
        try:
            if not self.is_ready:
                self._object.do_handshake()
                self.is_ready = True
            while chunk := self._object.read(_CHUNK):
                content += chunk
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):  # needs more data, or was closed
            pass
        return bytes(content)

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt `data` and return the bytes to send."""
        self._object.write(data)
        return self._outgoing.read()

    def to_send(self) -> bytes:
        """Return bytes of the TLS protocol that have to be sent."""
        return self._outgoing.read()
