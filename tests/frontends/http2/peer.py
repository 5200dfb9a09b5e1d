"""A client of HTTP/2 on a real socket, by the library h2, which checks what the server does."""

import socket
from contextlib import suppress
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
from h2.connection import ConnectionInputs, ConnectionState
from h2.settings import SettingCodes

from tests.waiting import PATIENCE

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "test"),
    (":path", "/model/add:cast"),
]


@dataclass
class Answer:
    """What a stream was answered."""

    fields: list = field(default_factory=list)
    body: bytes = b""
    informed: list = field(default_factory=list)
    has_ended: bool = False
    reset: int | None = None

    @property
    def status(self):
        return int(dict(self.fields)[":status"])


class Peer:
    """A connection; `h2` is its state, of which `send` writes the bytes.

    `window` is that of a stream; what is received is given back if the peer `acknowledges`.
    """

    def __init__(self, port, window=65_535):
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.h2.local_settings.acknowledge()
        # h2 takes a GOAWAY for the end, and its open streams for errors; RFC 9113, 6.8, does not.
        machine, state = self.h2.state_machine, ConnectionState.CLIENT_OPEN
        goes_on = {(state, ConnectionInputs.RECV_GOAWAY): (None, state)}
        machine._transitions = {**machine._transitions, **goes_on}
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.acknowledges, self.num_pings = True, 0
        self.answers = {}
        self.goaway = None
        self.is_open = True
        self.h2.initiate_connection()
        self.send()

    def send(self, data=b""):
        """Send what h2 has to say, and then `data`."""
        self.socket.sendall(self.h2.data_to_send() + data)

    def ask(self, *headers, body=None, path=None, method=None, is_last=True):
        """Send a request, and return the number of its stream."""
        fields = dict(REQUEST)
        fields[":path"] = path or fields[":path"]
        fields[":method"] = method or ("GET" if body is None else "POST")
        number = self.h2.get_next_available_stream_id()
        self.answers[number] = Answer()
        is_whole = body is None and is_last
        self.h2.send_headers(number, [*fields.items(), *headers], end_stream=is_whole)
        if body is not None:
            self.h2.send_data(number, body, end_stream=True)
        self.send()
        return number

    def upload(self, body, path):
        """Send a request with a large body, as fast as its windows allow."""
        length = ("content-length", str(len(body)))
        number = self.ask(length, path=path, method="POST", is_last=False)
        while True:
            size = self.h2.local_flow_control_window(number)
            part = body[: min(size, self.h2.max_outbound_frame_size)]
            body = body[len(part) :]
            if not body:
                break
            self.h2.send_data(number, part)
            self.send()
            self.read(until=lambda: self.h2.local_flow_control_window(number) > 0)
        self.h2.send_data(number, part, end_stream=True)
        self.send()
        return number

    def read(self, number=None, until=None):
        """Read until a stream has ended, or `until()` is true, or the server has closed."""
        until = until or (lambda: self.answers[number].has_ended)
        self.send()
        while self.is_open and not until():
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            self.is_open = bool(data)
            for event in self.h2.receive_data(data):
                self.take(event)
            with suppress(OSError):  # it may have closed
                self.send()
        return self.answers.get(number)

    def take(self, event):
        answer = self.answers.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event
        elif isinstance(event, h2.events.PingReceived):
            self.num_pings += 1
        elif answer is not None:
            self._take_answer(answer, event)

    def _take_answer(self, answer, event):
        if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            answer.fields = [*answer.fields, *event.headers]
        elif isinstance(event, h2.events.InformationalResponseReceived):
            answer.informed.append(int(dict(event.headers)[":status"]))
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data
            if self.acknowledges:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            answer.has_ended = True
        elif isinstance(event, h2.events.StreamReset):
            answer.has_ended, answer.reset = True, event.error_code

    def close(self):
        self.socket.close()
