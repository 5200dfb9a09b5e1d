"""A gang's model in this process, with agents that are only connections: what they may do to it."""

import asyncio
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.core.declaration import DistributedSpec
from mindspore_serving.core.deployment import GangOptions
from mindspore_serving.distributed import connecting, leader, messages, predictions, security
from mindspore_serving.distributed.backend import GangModel
from mindspore_serving.distributed.connecting import GangConnection, connect
from mindspore_serving.distributed.messages import JoinGang, Ran, Take
from mindspore_serving.errors import ServingError, StageFailed, StartError, WorkerUnavailable
from mindspore_serving.ipc.messages import Fault
from mindspore_serving.process.channel import encode
from mindspore_serving.process.vocabulary import Beat, Exit, Failed, fingerprint
from mindspore_serving.wire import native
from tests.distributed import tables
from tests.distributed.opening import PID, all_of, complete, raw, report
from tests.waiting import PATIENCE, eventually

X = np.ones((2, 3), np.float32)


def test_ranks_get_the_inputs_and_the_last_rank_returns_outputs(opening, pool):
    gang = opening()
    agents = complete(gang, "x", "x")
    done = pool.submit(gang.model.run, [X])
    runs = [agent.next() for agent in agents]
    assert [run.returns for run in runs] == [False, True]
    for run in runs:
        np.testing.assert_array_equal(native.decode_values(run.inputs)[0], X)
    agents[1].answer(7 * X, runs[1])
    agents[0].answer(run=runs[0])
    np.testing.assert_array_equal(done.result(PATIENCE)[0], 7 * X)


def test_without_a_pipeline_predictions_run_in_turn(opening, pool):
    gang = opening()
    agents = complete(gang, "x", "x")
    done = [pool.submit(gang.model.run, [X]) for _ in range(2)]
    for _ in done:
        runs = [agent.next() for agent in agents]
        assert all(agent.is_idle for agent in agents)
        for agent, run in zip(agents, runs, strict=True):
            agent.answer(X, run)
    for one in done:
        one.result(PATIENCE)


def test_with_a_pipeline_as_many_run_as_there_are_stages(opening, pool):
    gang = opening(8, 2, enable_pipeline_infer=True)
    agents = complete(gang, *["x"] * 4, *["hidden"] * 4)
    done = [pool.submit(gang.model.run, [X]) for _ in range(3)]
    first, second = agents[:4], agents[4:]
    for agent in first:
        agent.answer(5 * X)
    runs = [agent.next() for agent in second]  # of the first prediction
    np.testing.assert_array_equal(native.decode_values(runs[0].inputs)[0], 5 * X)
    for agent in first:  # of the second one, at the same time
        agent.answer(5 * X)
    assert all(agent.is_idle for agent in first)  # the third one waits
    for agent, run in zip(second, runs, strict=True):
        agent.answer(6 * X, run)
    for agent in (*first, *second, *second):
        agent.answer(6 * X)
    for one in done:
        np.testing.assert_array_equal(one.result(PATIENCE)[0], 6 * X)


def test_a_rank_that_raises_fails_the_prediction_only(opening, pool):
    gang = opening()
    agents = complete(gang, "x", "x")
    done = pool.submit(gang.model.run, [X])
    agents[0].fail("not a number")
    with pytest.raises(StageFailed, match="rank 0: not a number"):
        done.result(PATIENCE)
    agents[1].answer(X)
    again = pool.submit(gang.model.run, [X])
    for agent in agents:
        agent.answer(X)
    assert len(again.result(PATIENCE)) == 1


def test_ranks_that_do_not_come_back_from_a_failed_prediction_end_the_gang(
    opening, pool, monkeypatch
):
    monkeypatch.setattr(predictions, "SETTLE_SECONDS", 0.05)
    gang = opening()
    agents = complete(gang, "x", "x")
    pool.submit(gang.model.run, [X])
    agents[0].fail("out of memory")
    reason = "a prediction in which rank 0 failed kept ranks 1 for over 0.05 s"
    assert gang.broken.result(PATIENCE) == reason


def test_ranks_that_take_too_long_end_the_gang(opening, pool):
    for limit in (0.2, 5.0):  # on a busy machine rank 0 may take too long as well
        gang = opening(limit=limit)
        agents = complete(gang, "x", "x")
        done = pool.submit(gang.model.run, [X])
        agents[0].answer()
        reason = gang.broken.result(PATIENCE)
        if "ranks 0" not in reason:
            break
    assert reason == f"a prediction kept ranks 1 for over {limit:g} s"
    with pytest.raises(WorkerUnavailable, match="kept ranks 1"):
        done.result(PATIENCE)


def test_when_a_rank_is_lost_everything_is_answered_at_once(opening, pool):
    gang = opening()
    agents = complete(gang, "x", "x")
    done = [pool.submit(gang.model.run, [X]) for _ in range(3)]
    agents[0].next()
    agents[1].connection.close()
    assert gang.broken.result(PATIENCE) == "the agent of rank 1 has ended"
    for one in done:
        with pytest.raises(WorkerUnavailable, match="the agent of rank 1 has ended"):
            one.result(PATIENCE)
    with pytest.raises(WorkerUnavailable):
        gang.model.run([X])
    with pytest.raises(EOFError):
        agents[0].next()
    with pytest.raises(OSError, match="refused"):
        connect(gang.address)


def test_when_a_script_is_lost_its_gang_is(opening):
    gang = opening()
    script = gang.script()
    agents = [gang.agent(0), gang.agent(1)]
    assert gang.model is not None
    script.close()
    assert "started the agents of ranks 0, 1 has ended" in gang.broken.result(PATIENCE)
    assert len(agents) == 2


def test_a_silent_agent_is_lost_and_an_agent_with_heartbeats_is_not(opening):
    gang = opening(timeout=0.4)
    agents = complete(gang, "x", "x")
    while not wait([gang.broken], 0.02).done:
        with suppress(OSError):  # the gang has just ended
            agents[0].connection.send(Beat())
    assert "rank 1 was silent for" in gang.broken.result()


def test_agents_that_leave_before_the_gang_is_complete_may_come_again(opening):
    gang = opening()
    script = gang.script()
    gang.agent(0).close()
    script.close()

    def retake() -> GangConnection | None:
        try:
            return gang.script()
        except StartError:  # the end of the old connection was not seen yet
            return None

    eventually(retake)
    agents = [gang.agent(0), gang.agent(1)]
    assert gang.model.signature[0].inputs[0].name == "x"
    assert len(agents) == 2


def test_agents_that_cannot_start_end_the_wait(opening):
    gang = opening()
    gang.script().send(Failed("rank 1: no such file"))
    assert gang.error == "rank 1: no such file"


def test_the_wait_for_agents_may_be_limited(opening):
    gang = opening(wait=0.2)
    assert gang.error == "agents of ranks 0, 1 have not joined within 0.2 s"


def test_a_complete_gang_survives_scripts_that_give_up(opening, pool):
    gang = opening()
    agents = complete(gang, "x", "x")
    with pytest.raises(StartError, match="rank 0 is reserved already by another script"):
        gang.script()
    gang.connect().send(Failed("we were refused"))
    done = pool.submit(gang.model.run, [X])
    for agent in agents:
        agent.answer(X)
    assert len(done.result(PATIENCE)) == 1


def test_stopping_is_said_to_all(opening, pool):
    gang = opening()
    complete(gang, "x", "x")
    closing = pool.submit(gang.model.close)
    for connection in gang.connections:
        assert connection.receive(wait=True) == [Exit()]
        connection.close()
    closing.result(PATIENCE)


# --- what is refused ------------------------------------------------------------------------------


async def never() -> None:
    await asyncio.Event().wait()


def test_an_address_in_use_is_an_error(opening, pool):
    gang = opening()
    gang.connect()
    options = GangOptions(tables.text((tables.IP, 2)), gang.address, 0, 0)
    with pytest.raises(StartError, match="bind to the socket address .* failed"):
        GangModel.open("big", DistributedSpec(2, 1), options, print, never)


def test_a_wrong_rank_table_is_an_error():
    options = GangOptions("{}", "127.0.0.1:1", 0, 0)
    with pytest.raises(StartError, match="The rank table is wrong"):
        GangModel.open("big", DistributedSpec(2, 1), options, print, never)


@pytest.mark.parametrize("variable", [security.TOKEN, security.TOKEN_FILE])
def test_only_who_has_the_token_may_join(opening, monkeypatch, tmp_path, variable):
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(f"{name}\n")
    value = {security.TOKEN: "{}", security.TOKEN_FILE: str(tmp_path / "{}")}[variable]
    monkeypatch.setenv(variable, value.format("right"))
    gang = opening()
    gang.script()
    for wrong in ("", value.format("wrong")):
        monkeypatch.setenv(variable, wrong)
        with pytest.raises(StartError, match="wrong token: SERVING_DISTRIBUTED_TOKEN should"):
            connect(gang.address)


def test_a_token_file_that_cannot_be_read_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "empty").touch()
    for name, problem in (("none", "cannot read the file"), ("empty", "is empty")):
        path = tmp_path / name
        with pytest.raises(StartError, match=problem):
            security.read_token({security.TOKEN_FILE: str(path)})


def test_another_version_of_the_protocol_is_refused(opening, monkeypatch):
    gang = opening()
    gang.script()
    monkeypatch.setattr(connecting, "fingerprint", lambda messages: "other")
    with pytest.raises(StartError, match=r"speaks protocol \w{8} and the agent protocol other"):
        connect(gang.address)


def test_wrong_ranks_are_refused(opening):
    gang = opening()
    gang.script()
    agent = gang.agent(0)
    for rank, args, problem in (
        (0, (), "rank 0 has joined already"),
        (2, (), "rank 2 is unknown"),
        (1, ("x", (2, 4)), "the inputs of ranks of a stage should be the same"),
    ):
        with pytest.raises(StartError, match=problem):
            gang.agent(rank, *args)
    agent.send(JoinGang(1, report(), PID))
    with pytest.raises(StartError, match="has joined as rank 0 already"):
        agent.ask(Beat())


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"at most 65536 are accepted"),
        (struct.pack("<I", messages.SMALL + 1), b"at most 65536 are accepted"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", b"MessagePack"),
        (encode(Beat()), b"expected Proof as the first message"),
        (encode(messages.Proof(fingerprint(messages), "", b"")), b"wrong token"),
    ],
)
def test_data_that_is_no_greeting_is_refused_before_reading_on(opening, sent, problem):
    stream = raw(opening())
    stream.sendall(sent)
    assert problem in all_of(stream)


def test_who_does_not_greet_is_sent_away(opening, monkeypatch):
    monkeypatch.setattr(leader, "GREETING_SECONDS", 0.1)
    assert len(all_of(raw(opening(timeout=0.4)))) > security.NONCE


def test_the_oldest_unauthenticated_connections_are_closed_at_the_limit(opening, monkeypatch):
    monkeypatch.setattr(leader, "MAX_PENDING", 2)
    gang = opening()
    waiting = [raw(gang) for _ in range(4)]
    agents = complete(gang, "x", "x")
    assert len(agents) == 2
    for stream in waiting[:3]:  # the connections of the agents have pushed out one
        assert b"newer connections have not authenticated yet" in all_of(stream)
    waiting[3].close()


def test_a_flood_of_signs_of_life_is_not_read_faster_than_its_limit(opening, pool):
    gang = opening()
    flooder = gang.connect()
    flood = encode(Beat()) * (8_000_000 // len(encode(Beat()))) + encode(Failed("behind it all"))
    stream = socket.socket(fileno=os.dup(flooder.fileno()))
    flooding = pool.submit(stream.sendall, flood)
    assert len(complete(gang, "x", "x")) == 2  # else the gang has given up
    assert not flooding.done()
    stream.shutdown(socket.SHUT_RDWR)
    stream.close()
    assert isinstance(flooding.exception(PATIENCE), OSError)


@pytest.mark.parametrize(
    "message",
    [
        JoinGang(1, [], PID),
        JoinGang(1, [messages.GraphReport([messages.TensorReport("x", 99, None)], [])], PID),
        JoinGang(1, [messages.GraphReport([messages.TensorReport("x", 11, [-2])], [])], PID),
        JoinGang(1, [messages.GraphReport([messages.TensorReport("x", 11, [1] * 33)], [])], PID),
        JoinGang(1, [messages.GraphReport([messages.TensorReport("x", 13, None)], [])], PID),
        JoinGang(-(1 << 60), report(), PID),
        Take([1 << 60]),
        Ran(1, b""),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_alone(opening, message: msgspec.Struct):
    gang = opening()
    gang.script()
    with pytest.raises(StartError, match="the worker refuses"):
        gang.connect().ask(message)
    gang.agent(0)


def edited(frame: bytes, edits: list[tuple[int, int]]) -> bytes:
    """`frame` with the bytes at these places (from its end, so that most keep the length)."""
    found = bytearray(frame)
    for place, value in edits:
        found[-1 - place % len(found)] = value
    return bytes(found)


EDITS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4)
FRAMES = [
    encode(message)
    for message in (
        JoinGang(1, report(), PID),
        Take([0, 1]),
        Ran(1, b"abc", Fault(3, "text")),
        Beat(),
    )
]


def test_a_gang_serves_whatever_strangers_send(opening, pool):
    gang = opening()
    agents = complete(gang, "x", "x")

    @given(st.sampled_from(FRAMES), EDITS)
    @settings(max_examples=100)
    def send(frame: bytes, edits: list[tuple[int, int]]) -> None:
        connection = connect(gang.address)
        connection._stream.sendall(edited(frame, edits))
        connection.close()

    send()
    done = pool.submit(gang.model.run, [X])
    for agent in agents:
        agent.answer(X)
    assert len(done.result(PATIENCE)) == 1


def test_a_large_message_of_a_script_is_refused(opening):
    gang = opening()
    connection = gang.connect()
    with pytest.raises(StartError, match="at most 4194304|ended the conn|Broken|reset"):
        connection.ask(Failed("x" * messages.MEDIUM))


@pytest.mark.parametrize(
    "outputs",
    [b"", b"\xff" * 40, native.encode_values([X, X]), native.encode_values(["text"])],
)
def test_a_result_that_is_none_fails_the_prediction(opening, pool, outputs):
    gang = opening(1, 1)
    (agent,) = complete(gang, "x")
    done = pool.submit(gang.model.run, [X])
    agent.connection.send(Ran(agent.next().id, outputs))
    with pytest.raises(StageFailed, match="the last rank returned"):
        done.result(PATIENCE)


def test_an_agent_that_sends_an_unexpected_answer_is_lost(opening):
    gang = opening(1, 1)
    (agent,) = complete(gang, "x")
    agent.connection.send(Ran(77, b""))
    assert isinstance(agent.next(), Failed)
    agent.connection.close()
    assert "rank 0 was refused: rank 0 sent an answer" in gang.broken.result(PATIENCE)


def test_a_listener_that_is_no_worker_is_an_error(monkeypatch):
    monkeypatch.setattr(connecting, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TimeoutError, match="has not answered within"):
            connect(address)
        monkeypatch.setattr(connecting, "ANSWER_SECONDS", PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(connect, address)
            server.accept()[0].close()  # of the first try
            other, _ = server.accept()
            with other:
                other.sendall(b"\0\0\0\0SMTP ready")
                with pytest.raises(ServingError, match="is no worker of a distributed servable"):
                    done.result(PATIENCE)
