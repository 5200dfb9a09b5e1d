"""One input of the fuzzer: what is sent, over which channel, in which protocol; and its file.

A file is named NAME.CHANNEL, below a directory of its protocol, and holds the bytes that are sent.
Seeds that people write have two more forms: NAME.request, a request line, headers and a body
without what follows from them; and NAME.METHOD.textproto, a message in protobuf's text format.
"""

from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format

from mindspore_serving.proto import ms_service_pb2 as pb

SEEDS = Path(__file__).parent / "seeds"
HTTP, H2 = "http", "h2"  # channels: bytes to the HTTP port, and to the gRPC port
METHODS = ("Predict", "PredictStream")  # channels: a message to a method over gRPC
PROTOCOLS = (
    *(
        "anthropic",
        "classic",
        "gemini",
        "grpc",
        "grpc_bytes",
        "http",
        "llm_serving",
        "ollama",
        "openai",
    ),
    "tgi",
)


@dataclass(frozen=True, slots=True)
class Case:
    """`origin` says where it comes from: the name of a seed, or how it was made of one."""

    protocol: str
    channel: str
    data: bytes
    origin: str = ""

    def write(self, directory: Path, name: str) -> Path:
        """Its file, which `read` reads."""
        path = directory / self.protocol / f"{name}.{self.channel}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request as its parts; `body` as it is."""

    verb: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def to_bytes(self) -> bytes:
        """With the headers that every request has."""
        lines = [b"%b %b HTTP/1.1" % (self.verb, self.target), b"Host: localhost"]
        lines += [b"%b: %b" % header for header in self.headers]
        if self.body or self.verb == b"POST":
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join([*lines, b"", self.body])


def read(path: Path) -> Case:
    """The case of a file.  Raises ValueError for a name of another form."""
    protocol, kind = path.parent.name, path.suffix[1:]
    data = path.read_bytes()
    if kind == "request":
        return Case(protocol, HTTP, parse(data).to_bytes(), path.stem)
    if kind == "textproto":
        name, _, method = path.stem.rpartition(".")
        message = text_format.Parse(data.decode(), pb.PredictRequest())
        return Case(protocol, method, message.SerializeToString(), name)
    if kind not in (HTTP, H2, *METHODS):
        raise ValueError(f"{path}: expected NAME.request, .textproto, .{HTTP}, .{H2} or .METHOD")
    return Case(protocol, kind, data, path.stem)


def parse(data: bytes) -> Request:
    """The parts of a `.request` file, or of one whole request over HTTP/1.1."""
    separator = b"\r\n" if b"\r\n" in data.partition(b"\n")[0] + b"\n" else b"\n"
    head, _, body = data.partition(separator * 2)
    line, *lines = head.split(separator)
    verb, target = line.split(b" ")[:2]
    pairs = [tuple(one.split(b": ", 1)) for one in lines]
    made = (b"host", b"content-length")
    headers = tuple((p[0], p[1]) for p in pairs if len(p) == 2 and p[0].lower() not in made)
    return Request(verb, target, headers, body.strip() if separator == b"\n" else body)


def seeds(protocol: str) -> list[Case]:
    """All of a protocol, in the order of their names."""
    return [read(path) for path in sorted((SEEDS / protocol).iterdir())]
