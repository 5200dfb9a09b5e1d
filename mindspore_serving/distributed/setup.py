"""What a script and its agent say to each other: over a socket pair, once in each direction."""

from mindspore_serving.ipc.messages import Message


class AgentSetup(Message, frozen=True, tag=1):
    """What an agent is to load: a file for each sub-graph.  The key travels only here."""

    address: str  # of the worker, "ip:port"
    servable: str
    rank: int
    device_id: int
    model_files: list[str]
    dec_key: bytes | None
    dec_mode: str


class AgentReady(Message, frozen=True, tag=2):
    """It has joined the gang."""


class AgentFailed(Message, frozen=True, tag=3):
    """It could not, and ends."""

    text: str


FromAgent = AgentReady | AgentFailed
