"""The master's half: splitting requests and assembling replies, checked by the protobuf library."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import assume, given
from hypothesis import strategies as st

from mindspore_serving.errors import Code, InvalidInputs, ServingError, TooLarge
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import ms_proto
from mindspore_serving.wire.ms_instance import sized, to_varint

SPEC = bytes.fromhex("0a03 616464 1208 6164645f63617374 1801")


def test_the_error_of_a_bad_tensor_has_the_index_of_its_instance():
    reply = pb.PredictReply.FromString(
        ms_proto.assemble(b"", [b"", b""], [None, (Code.INVALID_TENSOR, "wrong")])
    )
    assert [one.error_code for one in reply.error_msg] == [0, 2]
    assert reply.error_msg[1].error_msg == b"wrong (instance 1, counted from 0)"


def test_peek_reads_the_golden_request(golden):
    assert ms_proto.peek(golden("predict_request.hex")) == ("add", "add_cast", 1, SPEC)


def test_split_gives_the_instances_without_a_copy(golden):
    body = golden("predict_request.hex")
    chunks = ms_proto.split(body)
    assert [bytes(chunk) for chunk in chunks] == [body[21:46], body[48:66]]
    assert all(chunk.obj is body for chunk in chunks)


def test_the_protobuf_library_reads_the_golden_request(golden):
    request = pb.PredictRequest.FromString(golden("predict_request.hex"))
    assert request.servable_spec.method_name == "add_cast"
    assert request.instances[1].items["s"].bytes_val[0] == b"hi"


def test_a_spec_after_the_instances_is_found(golden):
    body = golden("predict_request.hex")
    assert ms_proto.peek(body[19:] + body[:19]).name == "add"


def test_a_spec_in_parts_is_refused():
    body = sized(0x0A, SPEC) * 2
    with pytest.raises(InvalidInputs, match="several servable_spec"):
        ms_proto.split(body)


def test_a_request_without_a_spec_has_empty_names():
    assert ms_proto.peek(b"") == ("", "", 0, b"")


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x12\x80",
        b"\x12\x80\x80\x80\x80\x80\x01",
        b"\x00\x00",
        b"\x1b\x1c",
        b"\x18\xff",
        b"\x0a\x02\x0a\x05",
        b"\x0a\x03\x0a\x01\xff",
        b"\x0f\x01",
    ],
)
def test_garbage_is_refused(body):
    with pytest.raises(InvalidInputs, match="not a PredictRequest message"):
        ms_proto.peek(body)


def test_a_request_without_instances_is_refused():
    with pytest.raises(InvalidInputs, match="Instances count of request cannot be 0"):
        ms_proto.split(sized(0x0A, SPEC))


def test_more_instances_than_the_limit_are_refused():
    with pytest.raises(TooLarge, match="131072"):
        ms_proto.split(b"\x12\x00" * (131072 + 1))


def test_a_giant_spec_is_refused():
    spec = pb.ServableSpec(name="a" * 5000).SerializeToString()
    with pytest.raises(TooLarge, match="4096"):
        ms_proto.peek(sized(0x0A, spec))


def test_specs_are_forgotten_before_there_are_too_many():
    for number in range(3000):
        spec = pb.ServableSpec(name="x", version_number=number).SerializeToString()
        assert ms_proto.peek(sized(0x0A, spec)).version == number
    assert len(ms_proto._specs) <= 1024


def test_a_reply_with_a_failed_instance_equals_the_golden_reply(golden):
    good = bytes.fromhex("0a0d 0a0179 1208 100b 1a0400004040")
    reply = ms_proto.assemble(SPEC, [good, b"dropped"], [None, (Code.SYSTEM_ERROR, "boom")])
    assert reply == golden("predict_reply.hex")
    parsed = pb.PredictReply.FromString(reply)
    assert [error.error_code for error in parsed.error_msg] == [0, 3]
    assert [len(instance.items) for instance in parsed.instances] == [1, 0]


def test_a_failed_request_equals_the_golden_error(golden):
    assert ms_proto.assemble_error(SPEC, Code.INVALID_INPUTS, "nope") == golden("predict_error.hex")


def test_equal_failures_of_all_instances_are_told_once(golden):
    for count in (1, 3):
        reply = ms_proto.assemble(SPEC, [b""] * count, [(2, "nope")] * count)
        assert reply == golden("predict_error.hex")


def test_different_failures_are_reported_per_instance():
    reply = pb.PredictReply.FromString(ms_proto.assemble(b"", [b"", b""], [(1, "a"), (1, "b")]))
    assert [error.error_msg for error in reply.error_msg] == [b"a", b"b"]
    assert len(reply.instances) == 2


@pytest.mark.parametrize("errors", [None, [], [None, None]])
def test_a_good_reply_has_no_error_messages(errors):
    reply = pb.PredictReply.FromString(ms_proto.assemble(SPEC, [b"", b""], errors))
    assert len(reply.instances) == 2
    assert not reply.error_msg
    assert reply.servable_spec.version_number == 1


def test_an_error_without_text_gets_a_text_and_an_original_code():
    reply = pb.PredictReply.FromString(ms_proto.assemble_error(b"", Code.NOT_FOUND, ""))
    assert (reply.error_msg[0].error_code, reply.error_msg[0].error_msg) == (2, b"Predict failed")


def test_a_long_text_with_any_character_arrives():
    text = "\u6a21\ud800" * 200
    reply = pb.PredictReply.FromString(ms_proto.assemble_error(b"", 1, text))
    assert reply.error_msg[0].error_msg.decode() == "\u6a21\\ud800" * 200


varints = st.integers(0, 2**64 - 1).map(to_varint)
payloads = st.binary(max_size=200)
specs = st.builds(
    lambda name, method, version: pb.ServableSpec(
        name=name, method_name=method, version_number=version
    ).SerializeToString(),
    st.text(max_size=5),
    st.text(max_size=5),
    st.integers(0, 2**64 - 1),
)
fields = st.one_of(
    specs.map(lambda spec: sized(0x0A, spec)),
    payloads.map(lambda payload: sized(0x0A, payload)),
    st.just(sized(0x12, b"")),
    payloads.map(lambda payload: sized(0x12, payload)),
    payloads.map(lambda payload: b"\x92\x00" + to_varint(len(payload)) + payload),
    payloads.map(lambda payload: sized(0x7A, payload)),
    varints.map(lambda number: b"\x08" + number),
    st.binary(min_size=8, max_size=8).map(lambda data: b"\x11" + data),
    st.binary(min_size=4, max_size=4).map(lambda data: b"\x15" + data),
)


@given(st.lists(fields, max_size=6).map(b"".join))
def test_whatever_the_library_reads_is_read_alike(body):
    try:
        request = pb.PredictRequest.FromString(body)
    except DecodeError:
        return
    assume(sum(tag == 0x0A for tag, _, _ in ms_proto._fields(body)) < 2)
    spec = ms_proto.peek(body)
    expected = request.servable_spec
    assert spec[:3] == (expected.name, expected.method_name, expected.version_number)
    assert pb.ServableSpec.FromString(spec.raw) == expected
    if request.instances:
        chunks = ms_proto.split(body)
        assert [pb.Instance.FromString(bytes(c)) for c in chunks] == list(request.instances)


@given(st.one_of(st.binary(), st.lists(fields, max_size=6).map(b"".join)), st.data())
def test_whatever_is_accepted_the_library_accepts_but_for_the_instances(body, data):
    body = _mutate(body, data)
    try:
        ms_proto.peek(body)
        chunks = ms_proto.split(body)
    except ServingError:
        return
    for chunk in chunks:
        try:
            pb.Instance.FromString(bytes(chunk))
        except DecodeError:
            return
    pb.PredictRequest.FromString(body)


def _mutate(body: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(0, 3)) if body else 0):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed)[: data.draw(st.integers(0, len(body)))]
