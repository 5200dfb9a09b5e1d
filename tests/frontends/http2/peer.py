"""A client of HTTP/2 on a real socket, by the library h2, which checks what the server does."""

import socket
from contextlib import suppress
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.waiting import PATIENCE

REQUEST = [(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/model/add:cast")]


@dataclass
class Answer:
    """What a stream was answered."""

    fields: list = field(default_factory=list)
    body: bytes = b""
    has_ended: bool = False
    reset: int | None = None

    @property
    def status(self):
        return int(dict(self.fields)[":status"])


class Peer:
    """A connection; `h2` is its state, of which `send` writes the bytes."""

    def __init__(self, port, **settings):
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.answers = {}
        self.goaway = None
        self.is_open = True
        self.h2.initiate_connection()
        self.send()

    def send(self, data=b""):
        """Send what h2 has to say, and then `data`."""
        self.socket.sendall(self.h2.data_to_send() + data)

    def ask(self, *headers, body=None, path=None, method=None):
        """Send a request, and return the number of its stream."""
        fields = dict(REQUEST)
        fields[":path"] = path or fields[":path"]
        fields[":method"] = method or ("GET" if body is None else "POST")
        number = self.h2.get_next_available_stream_id()
        self.answers[number] = Answer()
        self.h2.send_headers(number, [*fields.items(), *headers], end_stream=body is None)
        if body is not None:
            self.h2.send_data(number, body, end_stream=True)
        self.send()
        return number

    def read(self, number=None, until=None):
        """Read until a stream has ended, or `until()` is true, or the server has closed."""
        until = until or (lambda: self.answers[number].has_ended)
        while self.is_open and not until():
            data = self.socket.recv(65536)
            self.is_open = bool(data)
            for event in self.h2.receive_data(data):
                self.take(event)
            with suppress(OSError):
                self.send()
        return self.answers.get(number)

    def take(self, event):
        answer = self.answers.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event
        elif answer is None:
            return
        elif isinstance(event, h2.events.ResponseReceived):
            answer.fields = event.headers
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            answer.has_ended = True
        elif isinstance(event, h2.events.StreamReset):
            answer.has_ended, answer.reset = True, event.error_code

    def close(self):
        self.socket.close()
