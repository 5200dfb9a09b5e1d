"""Frames of a byte stream, the blocking end, and the three kinds of address."""

import os
import socket
import struct
import tempfile
import threading
from contextlib import closing, suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.errors import TooLarge
from mindspore_serving.ipc.messages import Cancel, RequestPart, ToWorker, Work
from mindspore_serving.process.channel import (
    BlockingChannel,
    DescriptorChannel,
    connect,
    encode,
    message_decoder,
)
from mindspore_serving.process.frames import MAX_FRAME
from mindspore_serving.process.vocabulary import Exit

MESSAGES = [
    Cancel([1]),
    Exit(),
    Work([RequestPart(1, "m", "ms_json", [b"x" * 300], 0.5)]),
    Cancel([]),
]
STREAM = b"".join(encode(message) for message in MESSAGES)


def feed_all(frames, pieces):
    return [message for piece in pieces for message in frames.feed(piece)]


# --- frames -------------------------------------------------------------------------------------


def test_a_frame_is_a_little_endian_length_and_a_body():
    frame = encode(Cancel([1, 2]))
    assert struct.unpack("<I", frame[:4]) == (len(frame) - 4,)
    assert msgspec.msgpack.decode(frame[4:]) == [12, [1, 2]]  # the tag of Cancel, then its field


def test_several_frames_may_come_at_once():
    assert feed_all(message_decoder(ToWorker), [STREAM]) == MESSAGES


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_may_be_cut_anywhere(cut):
    frames = message_decoder(ToWorker)
    assert feed_all(frames, [STREAM[:cut], STREAM[cut:]]) == MESSAGES
    assert not frames._rest


def test_a_stream_may_come_byte_by_byte():
    frames = message_decoder(ToWorker)
    assert feed_all(frames, [STREAM[i : i + 1] for i in range(len(STREAM))]) == MESSAGES
    assert not frames._rest


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cuts_give_the_same_messages(cuts):
    ends = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    assert feed_all(message_decoder(ToWorker), pieces) == MESSAGES


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_raises_only_documented_errors(data):
    with suppress(TooLarge, msgspec.DecodeError):
        feed_all(message_decoder(ToWorker), [data])


def test_a_part_of_a_message_is_left_over():
    frames = message_decoder(ToWorker)
    assert feed_all(frames, [STREAM[:3]]) == []
    assert frames._rest


def test_a_buffer_may_be_reused_after_each_feed():
    frames, buffer, messages = message_decoder(ToWorker), bytearray(7), []
    for start in range(0, len(STREAM), 7):
        piece = STREAM[start : start + 7]
        buffer[: len(piece)] = piece
        messages += frames.feed(memoryview(buffer)[: len(piece)])
    assert messages == MESSAGES


def test_a_length_over_the_limit_is_refused_before_its_body_comes():
    with pytest.raises(TooLarge, match=f"{MAX_FRAME + 1} bytes, at most {MAX_FRAME}"):
        feed_all(message_decoder(ToWorker), [struct.pack("<I", MAX_FRAME + 1)])


def test_messages_before_an_invalid_message_are_decoded():
    frames = message_decoder(ToWorker).feed(encode(Exit()) + struct.pack("<I", 1) + b"\xc1")
    assert next(frames) == Exit()
    with pytest.raises(msgspec.DecodeError):
        next(frames)


# --- the blocking end ---------------------------------------------------------------------------


@pytest.fixture
def pair():
    """A channel of a worker, and the bare socket of its master."""
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(theirs, ToWorker)
    yield channel, ours
    channel.close()
    ours.close()


def test_receive_waits_for_a_whole_message(pair):
    channel, master = pair
    frame = encode(Cancel([5]))
    master.sendall(frame[:3])
    sender = threading.Timer(0.01, master.sendall, [frame[3:]])
    sender.start()
    assert channel.receive(wait=True) == [Cancel([5])]
    sender.join()


def test_receive_without_waiting_returns_messages_received_so_far(pair):
    channel, master = pair
    assert channel.receive(wait=False) == []
    master.sendall(encode(Cancel([1])) + encode(Cancel([2])) + b"\x05")
    assert channel.receive(wait=False) == [Cancel([1]), Cancel([2])]
    assert channel.receive(wait=False) == []


def test_a_message_larger_than_the_read_buffer_arrives(pair):
    channel, master = pair
    message = Work([RequestPart(1, "m", "ms_json", [b"x" * 3_000_000], None)])
    sender = threading.Thread(target=master.sendall, args=[encode(message)])
    sender.start()
    assert channel.receive(wait=True) == [message]
    sender.join()


def test_a_closed_stream_is_the_end(pair):
    channel, master = pair
    master.close()
    with pytest.raises(EOFError):
        channel.receive(wait=True)


def test_a_closed_stream_is_the_end_without_waiting_too(pair):
    channel, master = pair
    master.close()
    with pytest.raises(EOFError):
        channel.receive(wait=False)


def test_messages_sent_before_the_end_are_not_lost(pair):
    channel, master = pair
    master.sendall(encode(Exit()))
    master.close()
    assert channel.receive(wait=True) == [Exit()]
    with pytest.raises(EOFError):
        channel.receive(wait=True)


def test_a_last_message_that_fills_the_read_buffer_is_not_lost(pair):
    channel, master = pair
    channel._buffer = bytearray(encode(Exit()))
    master.sendall(encode(Exit()))
    master.close()
    assert channel.receive(wait=False) == [Exit()]
    with pytest.raises(EOFError):
        channel.receive(wait=False)


def test_frames_sent_by_several_threads_do_not_mix(pair):
    channel, master = pair
    threads = [
        threading.Thread(target=channel.send, args=[Cancel([number] * 20_000)])
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    frames, received = message_decoder(ToWorker), []
    while len(received) < 4:
        received += frames.feed(master.recv(1 << 16))
    for thread in threads:
        thread.join()
    assert sorted(message.ids for message in received) == [[n] * 20_000 for n in range(4)]


def test_receive_next_returns_a_single_message_and_keeps_the_rest(pair):
    channel, master = pair
    master.sendall(STREAM)
    assert channel.receive_next() == MESSAGES[0]
    assert channel.receive_next() == MESSAGES[1]
    assert channel.receive(wait=True) == MESSAGES[2:]
    assert channel.receive(wait=False) == []


def test_waiting_ends_after_its_timeout():
    ours, theirs = socket.socketpair()
    with ours, closing(BlockingChannel(theirs, ToWorker, timeout=0.05)) as channel:
        with pytest.raises(TimeoutError, match="no message within the timeout"):
            channel.receive(wait=True)
        assert channel.receive(wait=False) == []
        with pytest.raises(OSError, match="temporarily unavailable"):
            channel.send(Cancel([1 << 60] * 1_000_000))


def test_descriptors_come_with_their_messages():
    ours, theirs = socket.socketpair()
    receiver, sender = DescriptorChannel(ours, Exit), DescriptorChannel(theirs, Exit)
    with closing(receiver), closing(sender), tempfile.TemporaryFile() as file:
        sender.send(Exit(1.0))
        sender.send(Exit(2.0), [file.fileno()])
        assert [receiver.receive_next(), receiver.receive_next()] == [Exit(1.0), Exit(2.0)]
        (descriptor,) = receiver.take_descriptors()
        assert receiver.take_descriptors() == []
        try:
            assert os.path.samestat(os.fstat(descriptor), os.fstat(file.fileno()))
        finally:
            os.close(descriptor)


# --- addresses ----------------------------------------------------------------------------------


def check_talks(stream, other):
    stream.sendall(b"ping")
    assert other.recv(4) == b"ping"


def test_fd_is_an_inherited_socket():
    ours, theirs = socket.socketpair()
    with ours, connect(f"fd:{theirs.detach()}") as stream:
        check_talks(stream, ours)


def test_unix_is_a_path(tmp_path):
    path = str(tmp_path / "worker.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with connect(f"unix:{path}") as stream, listener.accept()[0] as other:
            check_talks(stream, other)


def test_tcp_is_a_host_and_a_port_and_does_not_delay_small_messages():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with connect(f"tcp:127.0.0.1:{port}") as stream, listener.accept()[0] as other:
            check_talks(stream, other)
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_where_nobody_listens_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        connect(f"unix:{tmp_path / 'nobody.sock'}")


def test_an_fd_that_is_no_socket_is_an_os_error():
    read, write = os.pipe()
    try:
        with pytest.raises(OSError, match="not a socket|non-socket"):
            connect(f"fd:{read}")
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("address", ["", "5500", "http://host", "fd:", "fd:x", "tcp:host:x"])
def test_other_forms_are_refused(address):
    with pytest.raises(ValueError, match="expected fd:N|invalid literal"):
        connect(address)
