"""A worker on a thread, with the test as its master at the other end of a real socket."""

import json
import os
import socket
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest

from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.ipc import arena as arenas
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import (
    CallReply,
    Cancel,
    Done,
    Fault,
    ModelReport,
    PartReply,
    RequestPart,
    Slice,
    ToMaster,
    Work,
    WorkerCall,
)
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.vocabulary import Exit, Failed, Leaving, Ready
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import native
from mindspore_serving.wire.v2.datatypes import BY_NUMPY
from mindspore_serving.wire.v2.tensors import InputTensor, TensorBody
from mindspore_serving.worker import borrowing
from mindspore_serving.worker.worker import Worker
from tests.waiting import PATIENCE

ADD = InstanceSignature((ValueSpec("x1"), ValueSpec("x2")), (ValueSpec("y"),))
BODY = """
import threading

may_go = threading.Event()

def double(x):
    if x.size and x.flat[0] < 0:
        raise ValueError("negative")
    return x * 2

def wait(x):
    may_go.wait(100)
    return x

@register.register_method(output_names=["y"])
def twice(x):
    return register.add_stage(double, x, outputs_count=1)

@register.register_method(output_names=["y"])
def waiting(x):
    x = register.add_stage(wait, x, outputs_count=1)
    return register.add_stage(double, x, outputs_count=1)

@register.register_method(output_names=["y"])
def same(x):
    return x
"""


class Master:
    """Our end: speaks to one worker that runs on a thread."""

    def __init__(self, *, shared):
        self.stream, theirs = socket.socketpair()
        self.stream.settimeout(PATIENCE)
        self._arenas = []
        if shared:
            to_worker, to_master = arenas.create(), arenas.create()
            self.arena, self.view = Arena(to_worker), ArenaView(to_master)
            self._arenas = [Arena(to_master), ArenaView(to_worker, is_writable=True)]
            os.close(to_worker)
            os.close(to_master)
            self.worker = Worker(theirs, *self._arenas)
        else:
            self.arena, self.view = NoArena(), NoArena()
            self.worker = Worker(theirs, NoArena(), NoArena())
        self._theirs = theirs
        self._frames, self._messages = message_decoder(ToMaster), []
        self.status = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        try:
            self.status = self.worker.serve()
        except (EOFError, ConnectionError) as error:
            self.status = type(error).__name__
        finally:
            self._theirs.close()

    def say(self, *messages):
        self.stream.sendall(b"".join(map(encode, messages)))

    def receive(self):
        while not self._messages:
            data = self.stream.recv(1 << 16)
            assert data, "the worker is gone"
            self._messages += self._frames.feed(data)
        return self._messages.pop(0)

    def replies(self, count):
        """That many answers, by id; `freed` of the messages is kept."""
        found, self.freed = {}, []
        while len(found) < count:
            done = self.receive()
            assert isinstance(done, Done)
            found.update({reply.id: reply for reply in done.replies})
            self.freed += done.freed
        return found

    def ask(self, method, *chunks, codec="native", timeout=None):
        """One work item with id 1; its answer."""
        self.say(Work([RequestPart(1, method, codec, list(chunks), timeout)]))
        return self.replies(1)[1]

    def end(self):
        """Ask it to exit; its status."""
        with suppress(ConnectionError):  # it may have left already
            self.say(Exit())
        self._thread.join(PATIENCE)
        return self.status

    def close(self):
        self.stream.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        for arena in (self.arena, self.view, *self._arenas):
            arena.close()


@pytest.fixture
def serve():
    """Start a worker with a Setup; it has said what came of loading in `first`."""
    masters = []

    def start(setup, *, shared=True):
        master = Master(shared=shared)
        masters.append(master)
        master.say(setup)
        master.first = master.receive()
        return master

    yield start
    for master in masters:
        master.close()


@pytest.fixture
def master(serve, write):
    return serve(write(BODY))


def chunk(*values):
    return native.encode_values([np.array(value) for value in values])


def value(payload):
    (array,) = native.decode_values(payload)
    return array.tolist()


def go():
    """Let the stage function `wait` return."""
    sys.modules["tiny.servable_config"].may_go.set()


# --- life ---------------------------------------------------------------------------------------


def test_ready_tells_the_methods(master):
    assert isinstance(master.first, Ready)
    assert master.first.version == 1
    assert [report.name for report in master.first.methods] == ["twice", "waiting", "same"]
    assert master.first.models == {}


def test_exit_ends_with_status_0(master):
    assert master.end() == 0


def test_exit_waits_for_running_parts(master):
    master.say(Work([RequestPart(1, "waiting", "native", [chunk(4)], None)]), Exit())
    go()
    assert value(master.replies(1)[1].instances[0]) == 8
    assert master.end() == 0


def test_messages_that_come_with_the_setup_are_not_lost(write, serve):
    master = Master(shared=True)
    try:
        work = Work([RequestPart(1, "same", "native", [chunk(4)], None)])
        master.say(write(BODY), work, Exit())
        assert isinstance(master.receive(), Ready)
        assert value(master.replies(1)[1].instances[0]) == 4
        assert master.end() == 0
    finally:
        master.close()


def test_the_end_of_the_stream_ends_the_worker(master):
    master.stream.shutdown(socket.SHUT_RDWR)
    master.close()
    assert master.status == "EOFError"


def test_a_servable_that_cannot_be_loaded_is_reported_and_ends_the_worker(serve, write):
    master = serve(write("raise OSError('disk on fire')"))
    assert isinstance(master.first, Failed)
    assert "disk on fire" in master.first.text
    assert "servable_config.py, line" in master.first.text
    assert master.end() == 1


def test_a_directory_that_is_not_there_is_told(serve, write):
    master = serve(write(BODY, servable_name="missing"))
    assert "missing" in master.first.text
    assert "not exist" in master.first.text


def test_leaving_is_announced_from_any_thread(master):
    master.worker.announce_leaving()
    assert master.receive() == Leaving()


# --- work ---------------------------------------------------------------------------------------


def test_work_in_our_own_encoding(master):
    reply = master.ask("twice", chunk([1, 2]), chunk([3]))
    assert [value(payload) for payload in reply.instances] == [[2, 4], [6]]
    assert reply.faults is None


def test_work_in_a_json_body(master):
    reply = master.ask("twice", b'{"instances":[{"x":1},{"x":[2,3]}]}', codec="ms_json")
    assert reply.instances == [b'{"y":2}', b'{"y":[4,6]}']


def test_work_in_json_items(master):
    reply = master.ask("twice", b'{"x":1}', b'{"x":2}', codec="ms_json_items")
    assert reply.instances == [b'{"y":2}', b'{"y":4}']


def test_work_in_protobuf(master):
    instance = pb.Instance()
    tensor = instance.items["x"]
    tensor.dtype, tensor.data = pb.MS_INT32, np.array([1, 2], np.int32).tobytes()
    tensor.shape.dims.append(2)
    reply = master.ask("twice", instance.SerializeToString(), codec="ms_proto")
    (output,) = [pb.Instance.FromString(payload) for payload in reply.instances]
    assert np.frombuffer(output.items["y"].data, np.int32).tolist() == [2, 4]
    assert list(output.items["y"].shape.dims) == [2]


def test_a_failing_instance_fails_alone(master):
    reply = master.ask("twice", chunk(1), chunk(-1), chunk(3))
    assert [value(data) if data else None for data in reply.instances] == [2, None, 6]
    assert [fault and fault.code for fault in reply.faults] == [None, 3, None]
    assert reply.faults[1].text == (
        "Call Function 'tiny.double' Failed, method: 'twice', stage 1 of 1, error msg: negative"
    )


@pytest.mark.parametrize(
    ("method", "codec", "data", "fault"),
    [
        ("missing", "ms_json", b"{}", (6, "method missing is not available")),
        ("twice", "ms_json", b"no json", (2, "Illegal JSON format")),
        ("twice", "ms_json", b'{"instances":[]}', (2, "array type, but no value")),
        ("twice", "ms_json", b'{"instances":{"z":1}}', (2, "input x")),
        ("twice", "native", b"short", (2, "no valid header")),
        ("twice", "unknown", b"", (1, "the request could not be decoded")),
    ],
)
def test_a_part_that_cannot_be_decoded_is_rejected_as_a_whole(master, method, codec, data, fault):
    reply = master.ask(method, data, codec=codec)
    assert reply.instances == []
    assert reply.rejected.code == fault[0]
    assert fault[1] in reply.rejected.text


def test_a_rejected_part_does_not_delay_other_parts(master):
    bad = RequestPart(1, "twice", "ms_json", [b"no json"], None)
    good = RequestPart(2, "twice", "ms_json", [b'{"instances":[{"x":1}]}'], None)
    master.say(Work([bad, good]))
    replies = master.replies(2)
    assert replies[1].rejected
    assert replies[2].instances == [b'{"y":2}']


def test_an_expired_part_is_not_run(master):
    (fault,) = master.ask("twice", chunk(1), timeout=0.0).faults
    assert (fault.code, fault.text) == (9, "time is up before stage 1")


def test_a_cancelled_part_stops_at_its_next_stage(master):
    master.say(Work([RequestPart(1, "waiting", "native", [chunk(1)], None)]), Cancel([1, 99]))
    go()
    (fault,) = master.replies(1)[1].faults
    assert fault.text == "the request was cancelled"


def test_cancelling_an_answered_part_is_harmless(master):
    master.ask("same", chunk(1))
    master.say(Cancel([1]))
    assert value(master.ask("same", chunk(2)).instances[0]) == 2


# --- shared memory ------------------------------------------------------------------------------

LARGE = np.arange(50_000)


def test_large_payloads_go_through_the_arenas_in_both_directions(master):
    payload = master.arena.put(chunk(LARGE))
    assert isinstance(payload, Slice)
    (answer,) = master.ask("twice", payload).instances
    assert isinstance(answer, Slice)
    assert value(master.view.get(answer)) == (LARGE * 2).tolist()


def test_the_worker_reuses_memory_that_the_master_freed(master):
    (first,) = master.ask("twice", chunk(LARGE)).instances
    (second,) = master.ask("twice", chunk(LARGE)).instances
    assert first.offset != second.offset
    work = Work([RequestPart(1, "twice", "native", [chunk(LARGE)], None)], [first.offset])
    master.say(work)
    (third,) = master.replies(1)[1].instances
    assert third.offset == first.offset


def test_a_stage_may_change_its_input_without_changing_the_arena(serve, write):
    master = serve(
        write("""
def spoil(x):
    x[:] = 0
    return x

@register.register_method(output_names=["y"])
def m(x):
    return register.add_stage(spoil, x, outputs_count=1)
""")
    )
    data = chunk(LARGE)
    payload = master.arena.put(data)
    master.ask("m", payload)
    assert value(data) == LARGE.tolist()
    assert set(value(master.view.get(master.ask("m", payload).instances[0]))) == {0}


KEEPING = """
kept = []

@method("y")
def keeps(x):
    kept.append(x)
    return x[:1]

@method("y")
def forgets(x):
    kept.pop()
    return x

def spoil(x):
    x += 1
    return x[:1]



@register.register_method(output_names=["y"])
def spoils(x):
    return register.add_stage(spoil, x, outputs_count=1)
"""


def tensor_chunk(array):
    """One instance, as protocol v2 has it."""
    tensor = InputTensor("x", BY_NUMPY[array.dtype], array.shape, "raw", array.tobytes())
    return TensorBody([tensor], is_batched=False).chunk(0, 1)


def test_a_large_tensor_is_used_in_place(serve, write):
    master = serve(write(KEEPING))
    payload = master.arena.put(tensor_chunk(LARGE))
    reply = master.ask("spoils", payload, codec="v2_raw")
    assert reply.kept == []
    start, end = payload.offset, payload.offset + payload.length
    assert bytes(master.arena._view[start:end]).endswith((LARGE + 1).tobytes())


def test_an_array_that_a_script_keeps_is_its_own_until_the_script_lets_go(serve, write):
    master = serve(write(KEEPING))
    payload = master.arena.put(tensor_chunk(LARGE))
    assert master.ask("keeps", payload, codec="v2_raw").kept == [payload.offset]
    assert master.freed == []
    (kept,) = sys.modules["tiny.servable_config"].kept
    assert kept.tolist() == LARGE.tolist()
    del kept
    master.ask("forgets", chunk(1))
    if not master.freed:
        master.freed = master.receive().freed
    assert master.freed == [payload.offset]


def test_scripts_that_keep_many_get_arrays_of_their_own(serve, write, monkeypatch):
    monkeypatch.setattr(borrowing, "MAX_KEPT", LARGE.nbytes)
    master = serve(write(KEEPING))
    kept = []
    for _ in range(3):
        payload = master.arena.put(tensor_chunk(LARGE))
        kept += master.ask("keeps", payload, codec="v2_raw").kept
    arrays = sys.modules["tiny.servable_config"].kept
    assert len(kept) == 1
    assert [one.tolist() for one in arrays] == [LARGE.tolist()] * 3
    assert all(one.flags.writeable for one in arrays)
    arrays.clear()


def test_memory_that_a_stage_returned_may_be_reused_at_once(serve, write):
    master = serve(
        write("""
memory = np.zeros(50_000, np.int64)

def count(instances):
    memory[:] += 1
    return [memory]

@register.register_method(output_names=["y"])
def m(x):
    return register.add_stage(count, x, outputs_count=1, batch_size=1)
""")
    )
    item = RequestPart(1, "m", "v2_raw", [tensor_chunk(np.array([1])) for _ in range(3)], None)
    master.say(Work([item]))
    found = [bytes(master.view.get(one)) for one in master.replies(1)[1].instances]
    ends = [np.frombuffer(one[-8:], np.int64).item() for one in found]
    assert ends == [1, 2, 3]


def test_without_arenas_large_payloads_travel_inline(serve, write):
    master = serve(write(BODY), shared=False)
    (answer,) = master.ask("twice", chunk(LARGE)).instances
    assert value(answer) == (LARGE * 2).tolist()


def test_a_slice_without_arenas_is_rejected(serve, write):
    master = serve(write(BODY), shared=False)
    assert master.ask("twice", Slice(0, 10)).rejected.text == "the request could not be decoded"


# --- models of other workers --------------------------------------------------------------------

REMOTE = """
@signature(2, 1)
def add(x1, x2):
    raise AssertionError("not here")

model = register.declare_model(add, model_format="Python")

def double(x):
    return x * 2

def ask(x):
    return model.call(x, x)

@register.register_method(output_names=["y"])
def staged(x1, x2):
    return register.add_stage(double, register.add_stage(model, x1, x2, outputs_count=1),
                              outputs_count=1)

@register.register_method(output_names=["y"])
def called(x):
    return register.add_stage(ask, x, outputs_count=1)

@register.register_method(output_names=["y"])
def same(x):
    return x
"""


@pytest.fixture
def extra(serve, write):
    """A worker that owns no models."""
    return serve(write(REMOTE, owns_models=False, models={"add": ModelReport(0, [ADD])}))


def add_for(call):
    """What a device worker makes of the instances of `call`."""
    pairs = [native.decode_values(data) for data in call.part.chunks]
    return [chunk(x1 + x2) for x1, x2 in pairs]


def test_a_model_stage_is_a_single_call_to_the_master(extra):
    extra.say(Work([RequestPart(1, "staged", "native", [chunk(1, 2), chunk(3, 4)], None)]))
    call = extra.receive()
    assert isinstance(call, WorkerCall)
    assert (call.servable, call.version, call.part.method) == ("tiny", 1, "@call_add_0")
    extra.say(CallReply(PartReply(call.part.id, add_for(call))))
    assert [value(data) for data in extra.replies(1)[1].instances] == [6, 14]


def test_other_work_goes_on_while_a_model_stage_is_away(extra):
    extra.say(Work([RequestPart(1, "staged", "native", [chunk(1, 2)], None)]))
    call = extra.receive()
    extra.say(Work([RequestPart(2, "same", "native", [chunk(7)], None)]))
    assert value(extra.replies(1)[2].instances[0]) == 7
    extra.say(CallReply(PartReply(call.part.id, add_for(call))))
    assert value(extra.replies(1)[1].instances[0]) == 6


def test_a_call_in_a_function_keeps_messages_that_arrive_before_its_reply(extra):
    extra.say(Work([RequestPart(1, "called", "native", [chunk(5)], None)]))
    call = extra.receive()
    extra.say(Work([RequestPart(2, "same", "native", [chunk(7)], None)]))
    extra.say(CallReply(PartReply(call.part.id, add_for(call))))
    replies = extra.replies(2)
    assert [value(replies[number].instances[0]) for number in (1, 2)] == [10, 7]


@pytest.mark.parametrize("method", ["staged", "called"])
def test_a_model_that_fails_elsewhere_fails_the_instances(extra, method):
    inputs = [1, 2] if method == "staged" else [1]
    extra.say(Work([RequestPart(1, method, "native", [chunk(*inputs)], None)]))
    call = extra.receive()
    reply = PartReply(call.part.id, [], rejected=Fault(5, "servable is not available"))
    extra.say(CallReply(reply))
    (fault,) = extra.replies(1)[1].faults
    assert fault.code == 5
    assert fault.text.endswith("servable is not available")


def test_a_fault_of_a_remote_instance_stays_with_that_instance(extra):
    extra.say(Work([RequestPart(1, "staged", "native", [chunk(1, 2), chunk(3, 4)], None)]))
    call = extra.receive()
    answers = [b"", add_for(call)[1]]
    extra.say(CallReply(PartReply(call.part.id, answers, [Fault(3, "overflow"), None])))
    reply = extra.replies(1)[1]
    assert [fault and fault.code for fault in reply.faults] == [3, None]
    assert value(reply.instances[1]) == 14


def test_a_missing_instance_fails_all(extra):
    extra.say(Work([RequestPart(1, "staged", "native", [chunk(1, 2), chunk(3, 4)], None)]))
    call = extra.receive()
    extra.say(CallReply(PartReply(call.part.id, add_for(call)[:1])))
    faults = extra.replies(1)[1].faults
    assert len(faults) == 2
    assert all("2 instances were sent, 1 came back" in fault.text for fault in faults)


@pytest.mark.parametrize("method", ["staged", "called"])
def test_the_shared_memory_of_an_answer_is_given_back(extra, method):
    inputs = [LARGE, LARGE] if method == "staged" else [LARGE]
    extra.say(Work([RequestPart(1, method, "native", [chunk(*inputs)], None)]))
    call = extra.receive()
    assert isinstance(call.part.chunks[0], Slice)
    payload = extra.arena.put(chunk(LARGE * 2))
    extra.say(CallReply(PartReply(call.part.id, [payload])))
    reply = extra.replies(1)[1]
    expected = LARGE * 4 if method == "staged" else LARGE * 2
    assert value(extra.view.get(reply.instances[0])) == expected.tolist()
    assert extra.freed == [payload.offset]


def test_exit_waits_for_models_that_are_away(extra):
    extra.say(Work([RequestPart(1, "staged", "native", [chunk(1, 2)], None)]), Exit())
    call = extra.receive()
    extra.say(CallReply(PartReply(call.part.id, add_for(call))))
    assert value(extra.replies(1)[1].instances[0]) == 6
    assert extra.end() == 0


def test_json_and_native_agree(master):
    text = master.ask("twice", json.dumps({"instances": [{"x": [1, 2]}]}).encode(), codec="ms_json")
    data = master.ask("twice", chunk([1, 2]))
    assert json.loads(text.instances[0])["y"] == value(data.instances[0])
