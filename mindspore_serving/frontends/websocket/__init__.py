"""WebSockets (RFC 6455) over the bytes of an exchange: handshake, frames and messages."""
