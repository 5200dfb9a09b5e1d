"""The worker's end of TLS over one connection: bytes in, bytes out; who moves them is the caller.

An event loop's own TLS keeps connections to itself until their handshake is over: they could not be
counted, nor be told why they are refused.
"""

import ssl

_CHUNK = 1 << 18  # bytes


class Encryption:
    def __init__(self, context: ssl.SSLContext) -> None:
        self.has_begun = False  # something has come
        self.is_ready = False  # the handshake is over: `encrypt` may be called
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def receive(self, data: bytes) -> bytes:
        """What is in `data`.  Raises ssl.SSLError if it is no TLS, or none that is accepted; in
        each case `to_send` has what TLS says to it."""
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
