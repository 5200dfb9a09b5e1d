"""A gang as the model of a worker: `run` sends inputs to agents and waits for the outputs."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from mindspore_serving import log
from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.backends.base import Array
from mindspore_serving.core.declaration import DeclaredModel, DistributedSpec
from mindspore_serving.core.deployment import GangOptions
from mindspore_serving.distributed import rank_table, security
from mindspore_serving.distributed.gang import Gang
from mindspore_serving.distributed.leader import Leader, OnBroken
from mindspore_serving.distributed.messages import Plan
from mindspore_serving.errors import InvalidInputs, StageFailed, StartError
from mindspore_serving.wire import native

BEAT_SECONDS = 1.0  # interval of an agent's heartbeats; shorter if the timeout is short
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


class GangModel:
    """A `LoadedModel` whose ranks run in agents; `num_slots` threads may call `run` at a time."""

    def __init__(self, loop: BackgroundLoop, leader: Leader) -> None:
        self._loop = loop
        self._leader = leader
        spec = leader.gang.spec
        self.spec: DeclaredModel = leader.gang.model
        self.num_slots = spec.stage_size if spec.enable_pipeline_infer else 1
        self.signature = leader.gang.signature  # inputs of the first rank, outputs of the last
        self.agents = leader.agents

    @classmethod
    def open(
        cls,
        name: str,
        spec: DistributedSpec,
        options: GangOptions,
        on_broken: OnBroken,
        stop_requested: Callable[[], Awaitable[None]],
    ) -> "GangModel":
        """Listen for agents and wait until all have joined.  Raises StartError.

        `on_broken` is called with the reason, on another thread, if a rank is lost later: from then
        on the model fails all predictions.  If `stop_requested`, which runs on that thread, returns
        before all have joined, scripts and agents get `Exit`.
        """
        try:
            gang = Gang(name, spec, rank_table.parse(options.rank_table))
        except InvalidInputs as error:
            raise StartError(str(error)) from error
        secret = security.read_token(os.environ)
        context = security.of_worker(os.environ)
        host, _, port = options.address.rpartition(":")
        if not host.startswith(_LOOPBACK):
            _warn(options.address, secret, context)
        timeout, limit = options.heartbeat_timeout, options.stage_timeout
        beat = min(BEAT_SECONDS, timeout / 4) if timeout else BEAT_SECONDS
        plan = Plan(name, options.rank_table, beat)

        async def gather() -> Leader:
            leader = Leader(
                gang, plan, secret, on_broken, timeout=timeout, limit=limit, context=context
            )
            await leader.open(host.strip("[]"), int(port))
            log.info("Distributed server start success, listening on %s", options.address)
            print(
                f"Serving: Distributed server start success, listening on {options.address}",
                flush=True,
            )
            await _gather(leader, options.wait_seconds, stop_requested())
            return leader

        loop = BackgroundLoop()
        return cls(loop, loop.run(gather()))

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run the ranks, see `LoadedModel.run`.

        Raises StageFailed if a rank failed, WorkerUnavailable if a rank is lost.
        """
        answer = self._loop.run(
            self._leader.predictions.run(subgraph, native.encode_values(inputs))
        )
        try:
            outputs = native.decode_values(answer)
        except InvalidInputs as error:
            raise StageFailed(f"the last rank returned an invalid result: {error}") from error
        arrays = [output for output in outputs if isinstance(output, np.ndarray)]
        expected = len(self.signature[subgraph].outputs) or len(outputs)
        if not len(arrays) == len(outputs) == expected:
            raise StageFailed(f"the last rank returned {len(arrays)} arrays, not {expected}")
        return arrays

    def close(self) -> None:
        """Stop the gang: the agents exit, and their scripts end."""
        self._loop.run(self._leader.stop())
        self._loop.close()


async def _gather(leader: Leader, seconds: float, stop_requested: Awaitable[None]) -> None:
    """Wait until all ranks have joined, see `Leader.gather`; stop the gang on request."""
    gathering = asyncio.ensure_future(leader.gather(seconds))
    stopping = asyncio.ensure_future(stop_requested)
    await asyncio.wait((gathering, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not gathering.done():
        await leader.stop()
    stopping.cancel()
    await asyncio.wait((stopping,))  # it reads what others read from now on
    await gathering


def _warn(address: str, secret: bytes, context: ssl.SSLContext | None) -> None:
    """Log the risks of an address that other machines can reach, without token or TLS."""
    if not secret and (context is None or context.verify_mode == ssl.CERT_NONE):
        text = "any machine that reaches %s may join as an agent: set %s here and for agents"
        log.warning(f"{text}, or listen on 127.0.0.1", address, security.TOKEN)
    if context is None:
        text = "traffic between %s and agents is not encrypted: set %s"
        log.warning(f"{text}, or listen on 127.0.0.1", address, security.CERTIFICATE)
