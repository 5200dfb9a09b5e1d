"""Messages between the worker of a gang, scripts that start agents, and agents.

They are in addition to `process.vocabulary`:

    worker                      script or agent
    Challenge               ->
                            <-  Proof
    Plan                    ->
                            <-  Take (script), or JoinGang (agent, once its model is loaded)
    Ready                   ->
    RunRank (to agents)     ->
                            <-  Ran; Beat at any time
    Exit                    ->  the servable is stopped

`Failed` says why the worker closes a connection, or why a script could not start its agents.  A
script sends its agent an `AgentSetup`; the agent sends `Hello`, then `Ready` once it has joined, or
`Failed`.
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

# Limits of messages, in bytes.
SMALL = 1 << 16  # before a peer has authenticated
MEDIUM = 4 << 20  # without tensors; a plan has a rank table
MAX_TENSORS = MAX_FRAME - 64  # encoded tensors; the rest is for the encoding of the message


class TensorReport(Message, frozen=True):
    """An input or output; `dtype` is a number of ms_service.proto (0: unknown).

    `shape` is None if it is unknown.
    """

    name: str
    dtype: int
    shape: list[int] | None


class GraphReport(Message, frozen=True):
    """The signature of a sub-graph."""

    inputs: list[TensorReport]
    outputs: list[TensorReport]


# --- worker to script or agent ----------------------------------------------------------------


class Challenge(Message, frozen=True, tag=10):
    """The first message: a random number, to which `Proof` answers."""

    nonce: bytes


class Plan(Message, frozen=True, tag=11):
    """The gang: the text of its rank table, and the interval of `Beat` in seconds."""

    servable: str
    rank_table: str
    beat_seconds: float


class RunRank(Message, frozen=True, tag=13):
    """A command to run a sub-graph on `inputs`, and to return its outputs if `returns`.

    `inputs` are encoded by `wire.native`.
    """

    id: int
    subgraph: int
    inputs: bytes
    returns: bool


# --- script or agent to worker ----------------------------------------------------------------


class Proof(Hello, frozen=True, tag=20):
    """The answer to `Challenge`, which proves knowledge of the token, see `security.prove`."""

    proof: bytes


class Take(Message, frozen=True, tag=21):
    """A request of a script to reserve ranks, whose agents it is going to start."""

    ranks: list[int]


class JoinGang(Message, frozen=True, tag=23):
    """A request of an agent to join, once it has loaded the model of its rank.

    `pid` is its process id on its machine.
    """

    rank: int
    graphs: list[GraphReport]
    pid: int


class Ran(Message, frozen=True, tag=25):
    """The answer to a `RunRank`: the outputs (b"" if they were not requested), or a fault."""

    id: int
    outputs: bytes
    fault: Fault | None = None


# --- between a script and its agent, over a socket pair ----------------------------------------


class AgentSetup(Message, frozen=True, tag=30):
    """The model that an agent has to load: a file for each sub-graph, and their key.

    `address` is that of the worker, "ip:port".  No other message carries the key.
    """

    address: str
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
    """Convert signatures of sub-graphs to messages."""
    return [
        GraphReport(list(map(_report, graph.inputs)), list(map(_report, graph.outputs)))
        for graph in graphs
    ]


def to_signatures(reports: Sequence[GraphReport]) -> tuple[Signature, ...]:
    """Convert messages of another process to signatures.  Raises InvalidInputs."""
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
        raise InvalidInputs(f"tensor '{report.name}' has an invalid shape: {shape[:MAX_RANK]}")
    return TensorSpec(report.name, row.numpy if row else None, shape)
