"""The worker's end of the connection to a script or an agent: frames, limits, silence.

Decides nothing: its owner gets the messages.
"""

import asyncio
import secrets
import ssl
from typing import Protocol, cast

import msgspec

from mindspore_serving import log
from mindspore_serving.distributed import messages, security
from mindspore_serving.distributed.keeping import keep_alive
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

MOST_BEATS = 100  # signs of life in a second; who sends more is not read for one
MOST_WORDS = 4096  # characters of a reason
_CHUNK = 1 << 18  # bytes that are decrypted at once


class Owner(Protocol):
    """Gets what comes from peers."""

    def on_opened(self, peer: "GangPeer") -> None: ...

    def on_message(self, peer: "GangPeer", message: ToGang) -> None: ...

    def on_closed(self, peer: "GangPeer") -> None: ...


class GangPeer(asyncio.Protocol):
    """A script, or the agent of `rank` once it has joined."""

    def __init__(self, owner: Owner, secret: bytes, context: ssl.SSLContext | None = None) -> None:
        """`context` is None without TLS."""
        self.rank: int | None = None
        self.is_known = False  # it has proved the token
        self.silent_for = 0.0  # seconds, counted by the owner; before that, of its whole life
        self.why = ""  # it was refused
        self.address = ""
        self._num_beats, self._second = 0, 0.0  # since the begin of this one
        self._owner = owner
        self._secret = secret
        self._nonce = secrets.token_bytes(security.NONCE)
        self._frames: FrameDecoder[ToGang] = message_decoder(ToGang, SMALL)
        self._transport: asyncio.Transport | None = None
        self._encryption = Encryption(context) if context is not None else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        keep_alive(transport.get_extra_info("socket"))
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        if self._encryption is None:
            self._challenge()
        self._owner.on_opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_known:
            self.silent_for = 0.0
        try:
            for message in self._frames.feed(self._decrypt(data)):
                if self._transport is None:
                    return  # refused
                self._num_beats += isinstance(message, Beat)
                if self.is_known:
                    self._owner.on_message(self, message)
                else:
                    self._greet(message)
        except (msgspec.DecodeError, ServingError) as error:
            self.refuse(str(error))
        except ssl.SSLError as error:
            log.warning("a script or an agent is refused: no TLS that is accepted: %s", error)
            self.close()
        if self._num_beats:
            self._slow_down()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.on_closed(self)

    def _slow_down(self) -> None:
        """Read on in the next second if there are too many signs of life in this one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._second >= 1:
            self._second = now
        elif self._num_beats < MOST_BEATS:
            return
        if self._num_beats >= MOST_BEATS and self._transport is not None:
            self._transport.pause_reading()
            loop.call_later(1, self._read_on)
        self._num_beats = 0

    def _read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def expect_tensors(self) -> None:
        """From now on it may send large messages."""
        self._frames.limit = MAX_FRAME

    def send(self, message: msgspec.Struct) -> None:
        self.write(encode(message))

    def write(self, frame: bytes) -> None:
        if self._transport is None:
            return
        if self._encryption is None:
            self._transport.write(frame)
        elif self._encryption.is_ready:
            self._transport.write(self._encryption.encrypt(frame))

    def refuse(self, text: str) -> None:
        """Say why, and end the connection."""
        text = text[:MOST_WORDS]
        log.warning("a script or an agent is refused: %s", text)
        self.why = f"was refused: {text}"
        self.send(Failed(text))
        self.close()

    def dismiss(self) -> None:
        """End the connection of one that has not greeted in time."""
        if self._encryption is not None and not self._encryption.has_begun:
            self._encryption = None  # one without TLS waits for our first message
            self.refuse(f"it wants TLS: set {security.AUTHORITY} for agents too")
        self.abort()

    def abort(self) -> None:
        """End the connection now, whatever is not sent."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection when all is sent; what comes meanwhile is not read."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _challenge(self) -> None:
        self.send(Challenge(self._nonce))

    def _decrypt(self, data: bytes) -> bytes:
        """Raises ssl.SSLError."""
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
            raise InvalidInputs("the first message should be Proof")
        if message.fingerprint != (ours := fingerprint(messages)):
            raise InvalidInputs(
                f"the worker speaks protocol {ours} and the agent protocol {message.fingerprint}: "
                "install the same version of mindspore-serving on all machines"
            )
        if not security.is_proof(message.proof, self._secret, self._nonce):
            raise InvalidInputs(
                f"wrong token: {security.TOKEN} should be the same for the worker and all agents"
            )
        self.is_known = True
        self._frames.limit = MEDIUM
        self._owner.on_message(self, message)


class Encryption:
    """The worker's end of TLS over one connection: bytes in, bytes out.

    An event loop's own TLS keeps connections to itself until their handshake is over: they could
    not be counted, nor be told why they are refused.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.has_begun = False  # something has come
        self.is_ready = False  # the handshake is over: `encrypt` may be called
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def receive(self, data: bytes) -> bytes:
        """What is in `data`.  Raises ssl.SSLError if it is no TLS, or none that is accepted; in
        each case `to_send` has what TLS says to it.
        """
        self.has_begun = True
        self._incoming.write(data)
        found = bytearray()
        try:
            if not self.is_ready:
                self._object.do_handshake()
                self.is_ready = True
            while chunk := self._object.read(_CHUNK):
                found += chunk
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):  # all is read, or it ends
            pass
        return bytes(found)

    def encrypt(self, data: bytes) -> bytes:
        """What to send so that the other end gets `data`."""
        self._object.write(data)
        return self._outgoing.read()

    def to_send(self) -> bytes:
        return self._outgoing.read()
