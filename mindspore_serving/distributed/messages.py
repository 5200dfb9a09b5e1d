"""What the worker of a gang, the scripts that start agents, and the agents say beside
`process.vocabulary`.

A connection to the worker begins with `Challenge` and `Proof`.  A script then gets a `Plan` and
sends `Take`; an agent sends `JoinGang` when it has loaded its model, and answers each `RunRank`.
`Ready` is the answer to both.  `Failed` says why the worker ends a connection, or why a script
could not start its agents; `Exit` that the servable is stopped for good.  A script sends its agent
an `AgentSetup`, and gets `Hello`, then `Ready` when the agent has joined, or `Failed`.
"""

from collections.abc import Sequence
from typing import TypeAlias

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.ipc.messages import Fault
from mindspore_serving.process.frames import MAX_FRAME
from mindspore_serving.process.vocabulary import Beat, Exit, Failed, Hello, Message, Ready
from mindspore_serving.wire.tensor import MAX_RANK

SMALL = 1 << 16  # bytes of any message before a peer has proved its token
MEDIUM = 4 << 20  # ... and of all but tensors: a plan has a rank table
MOST_TENSORS = MAX_FRAME - 64  # bytes of encoded tensors; the rest is for the message around


class TensorReport(Message, frozen=True):
    """An input or output: its type by number (0: unknown) and its shape (None: unknown)."""

    name: str
    dtype: int
    shape: list[int] | None


class GraphReport(Message, frozen=True):
    """The signature of a sub-graph."""

    inputs: list[TensorReport]
    outputs: list[TensorReport]


# --- worker to script or agent ----------------------------------------------------------------


class Challenge(Message, frozen=True, tag=10):
    """The first message: what to prove the token on."""

    nonce: bytes


class Plan(Message, frozen=True, tag=11):
    """What the gang is: the rank table as its file is, and how often agents send a `Beat`."""

    servable: str
    rank_table: str
    beat_seconds: float


class RunRank(Message, frozen=True, tag=13):
    """Run a sub-graph on `inputs` (`wire.native`), and return the outputs if `returns`."""

    id: int
    subgraph: int
    inputs: bytes
    returns: bool


# --- script or agent to worker ----------------------------------------------------------------


class Proof(Hello, frozen=True, tag=20):
    """The answer to `Challenge`, which proves the token."""

    proof: bytes


class Take(Message, frozen=True, tag=21):
    """A script is going to start the agents of these ranks."""

    ranks: list[int]


class JoinGang(Message, frozen=True, tag=23):
    """An agent, the process `pid` of its machine, has loaded the model of its rank."""

    rank: int
    graphs: list[GraphReport]
    pid: int


class Ran(Message, frozen=True, tag=25):
    """The answer to a `RunRank`: the outputs (b"" if nobody asked for them), or why it failed."""

    id: int
    outputs: bytes
    fault: Fault | None = None


# --- between a script and its agent, over a socket pair ----------------------------------------


class AgentSetup(Message, frozen=True, tag=30):
    """What an agent is to load: a file for each sub-graph.  The key travels only here."""

    address: str  # of the worker, "ip:port"
    servable: str
    rank: int
    device_id: int
    model_files: list[str]
    dec_key: bytes | None
    dec_mode: str


ToPeer: TypeAlias = Challenge | Plan | Ready | Failed | RunRank | Exit
FromAgent: TypeAlias = Hello | Ready | Failed
ToGang: TypeAlias = Proof | Take | Failed | JoinGang | Beat | Ran


def to_reports(graphs: Sequence[Signature]) -> list[GraphReport]:
    return [
        GraphReport([_report(one) for one in graph.inputs], [_report(one) for one in graph.outputs])
        for graph in graphs
    ]


def to_signatures(reports: Sequence[GraphReport]) -> tuple[Signature, ...]:
    """What another process reported.  Raises InvalidInputs."""
    return tuple(
        Signature(tuple(map(_spec, graph.inputs)), tuple(map(_spec, graph.outputs)))
        for graph in reports
    )


def _report(spec: TensorSpec) -> TensorReport:
    number = 0 if spec.dtype is None else dtypes.BY_SPEC[spec.dtype].proto
    return TensorReport(spec.name, number, None if spec.shape is None else list(spec.shape))


def _spec(report: TensorReport) -> TensorSpec:
    row = dtypes.BY_PROTO.get(report.dtype)
    if report.dtype and (row is None or row.numpy is None):
        raise InvalidInputs(f"tensor '{report.name}' has an unknown type {report.dtype}")
    shape = None if report.shape is None else tuple(report.shape)
    if shape is not None and (len(shape) > MAX_RANK or any(dim < -1 for dim in shape)):
        raise InvalidInputs(f"tensor '{report.name}' has no shape: {shape[:MAX_RANK]}")
    return TensorSpec(report.name, row.numpy if row else None, shape)
