"""Fields of requests and answers: HPACK and its cache, against the library hpack."""

import hpack
import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.http2.fields import (
    NO_TABLE,
    FieldReader,
    encode_head,
    literal,
)
from mindspore_serving.frontends.http2.frames import StreamFault

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b"x-name", b"value")]


class CountingDecoder(hpack.Decoder):
    """A decoder that counts the blocks it decodes."""

    num_decoded = 0

    def decode(self, data, raw=False):
        self.num_decoded += 1
        return super().decode(data, raw)


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setattr(hpack, "Decoder", CountingDecoder)
    return FieldReader(ServerLimits())


def test_a_block_of_indices_is_decoded_once(reader):
    encoder = hpack.Encoder()
    blocks = [encoder.encode(REQUEST) for _ in range(4)]
    heads = [reader.read_head(block) for block in blocks]
    assert {(head.method, head.target, tuple(head.headers)) for head in heads} == {
        (b"POST", b"/a", ((b"x-name", b"value"),))
    }
    assert reader._decoder.num_decoded == 2  # the first fills the table


def test_a_block_is_decoded_again_when_the_table_has_changed(reader):
    encoder = hpack.Encoder()
    reader.read_head(encoder.encode(REQUEST))
    again = encoder.encode(REQUEST)
    reader.read_head(again)
    reader.read_head(encoder.encode([*REQUEST[:3], (b"x-other", b"other")]))
    with pytest.raises(StreamFault):  # the indices of its fields are those of others now
        reader.read_head(again)


def test_an_entry_that_pushes_out_an_equal_entry_changes_the_table(reader):
    """The newest entry and their number are the same then, but the indices are not."""
    encoder = hpack.Encoder()
    size = 2 * (len("x-name") + len("value") + 32)
    fill = [*REQUEST[:3], *[(b"x-name", b"value")] * 2]
    encoder.header_table_size = size
    reader.read_head(encoder.encode(fill))
    repeated = b"\x83\x86\x84" + b"\x40\x06x-name\x05value"
    for _ in range(3):
        reader.read_head(repeated)
    assert not reader._heads


@pytest.mark.parametrize("status", [200, 204, 206, 304, 400, 404, 429, 500, 503])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 300, 20_000])
def test_answers_are_read_by_hpack(status, size):
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % size),
        (b"x-" + b"n" * size, b"v" * size),
    ]
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    decoded = decoder.decode(NO_TABLE + encode_head(status, fields), raw=True)
    assert decoded == [(b":status", b"%d" % status), *fields]


def test_fields_of_a_connection_are_left_out_of_answers():
    fields = [(b"connection", b"close"), (b"transfer-encoding", b"chunked"), (b"x", b"y")]
    assert hpack.Decoder().decode(encode_head(200, fields)) == [(":status", "200"), ("x", "y")]


def test_names_of_answers_are_in_lower_case():
    assert hpack.Decoder().decode(literal(b"X-Name", b"Value")) == [("x-name", "Value")]
