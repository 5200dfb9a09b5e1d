"""Predictions in flight in a gang: messages to agents, results and timeouts.

Lives on the event loop of the `Leader`; `stages` decides which ranks get which inputs.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mindspore_serving.distributed.gang import Gang
from mindspore_serving.distributed.messages import MAX_TENSORS, Ran, RunRank
from mindspore_serving.distributed.peer import GangPeer
from mindspore_serving.distributed.stages import GangPrediction, RankStage, StageInputs
from mindspore_serving.errors import InvalidInputs, StageFailed, TooLarge, WorkerUnavailable
from mindspore_serving.process.channel import encode

OnStuck: TypeAlias = Callable[[str], None]
"""A callback that gets the reason."""

SETTLE_SECONDS = 10.0  # timeout of the other ranks of a prediction in which a rank failed


@dataclass(slots=True)
class _Pending:
    """A prediction in flight, and the future of its result."""

    prediction: GangPrediction
    subgraph: int
    answer: "asyncio.Future[bytes]"


class Predictions:
    """Predictions of a gang; `agents` are the connections by rank.

    `on_stuck` is called with the reason if ranks do not finish a prediction within `limit` seconds
    (0: unlimited), or within SETTLE_SECONDS after one of them has failed.
    """

    def __init__(
        self, gang: Gang, agents: Mapping[int, GangPeer], on_stuck: OnStuck, limit: float
    ) -> None:
        spec = gang.spec
        self._slots = asyncio.Semaphore(spec.stage_size if spec.enable_pipeline_infer else 1)
        self._gang = gang
        self._agents = agents
        self._on_stuck = on_stuck
        self._limit = limit
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0
        self._reason = ""  # why predictions are refused from now on

    async def run(self, subgraph: int, inputs: bytes) -> bytes:
        """Run a sub-graph on encoded inputs; return the encoded outputs of the last rank.

        Raises StageFailed if a rank failed, WorkerUnavailable if the gang is lost.
        """
        if len(inputs) > MAX_TENSORS:
            raise TooLarge(f"inputs of {len(inputs)} bytes, at most {MAX_TENSORS} are accepted")
        await self._slots.acquire()
        if self._reason:
            self._slots.release()  # wakes the next caller, which fails too
            raise WorkerUnavailable(self._reason)
        self._next_id += 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        pending = _Pending(GangPrediction(self._gang.routes[subgraph]), subgraph, answer)
        self._pending[self._next_id] = pending
        for stage in pending.prediction.begin():
            self._send(self._next_id, pending, stage, inputs)
        if self._limit:
            self._expect(self._next_id, self._limit, "a prediction")
        return await answer

    def _send(self, number: int, pending: _Pending, stage: RankStage, inputs: bytes) -> None:
        payload = b"" if stage.source is StageInputs.NOTHING else inputs
        frames: dict[bool, bytes] = {}
        for rank in stage.ranks:
            returns = stage.returns and rank == stage.last
            if returns not in frames:
                frames[returns] = encode(RunRank(number, pending.subgraph, payload, returns))
            self._agents[rank].write(frames[returns])

    def on_ran(self, rank: int, ran: Ran) -> None:
        """Handle the answer of an agent.  Raises InvalidInputs if it was not expected."""
        pending = self._pending.get(ran.id)
        if pending is None:
            raise InvalidInputs(f"rank {rank} sent an answer that was not expected")
        prediction = pending.prediction
        if ran.fault is None:
            following = prediction.answered(rank, ran.outputs)
            if following is not None:
                self._send(ran.id, pending, following, ran.outputs)
        else:
            error = StageFailed(f"rank {rank}: {ran.fault.text}")
            prediction.failed(rank, error)
            if not pending.answer.done():
                pending.answer.set_exception(error)
                self._expect(ran.id, SETTLE_SECONDS, f"a prediction in which rank {rank} failed")
        if prediction.is_settled:
            self._settle(ran.id, pending)

    def _settle(self, number: int, pending: _Pending) -> None:
        del self._pending[number]
        self._slots.release()
        if not pending.answer.done():
            assert pending.prediction.outputs is not None  # the last rank did not fail
            pending.answer.set_result(pending.prediction.outputs)

    def _expect(self, number: int, seconds: float, title: str) -> None:
        """Report ranks as stuck if they still work on the prediction after `seconds`."""

        def check() -> None:
            pending = self._pending.get(number)
            if pending is not None:
                stuck = ", ".join(map(str, pending.prediction.waiting))
                self._on_stuck(f"{title} kept ranks {stuck} for over {seconds:g} s")

        asyncio.get_running_loop().call_later(seconds, check)

    def fail(self, reason: str) -> None:
        """Fail all predictions, also later ones, with `reason`."""
        self._reason = self._reason or reason
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(WorkerUnavailable(reason))
        self._pending.clear()
        self._slots.release()
