"""Costs of the simulation `fleet`, and a plan of how its replicas are used."""

from dataclasses import dataclass

from mindspore_serving.llm.engine.handoff_choice import HandoffCosts

BLOCK = 32  # tokens of a cache block


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of the master for a request and a reply; of a step, a sequence in it, a token."""

    dispatch: float = 0.0
    reply: float = 0.0
    step: float = 0.0
    sequence: float = 0.0
    prompt: float = 0.0  # of a token that is computed
    fetch: float = 0.0  # of a token that is read from the store
    transfer: float = 0.0  # of a token that moves from prefill to decode

    def handoff(self) -> HandoffCosts:
        """Return what workers of a server measure."""
        trip = 2 * (self.dispatch + self.reply)
        return HandoffCosts(BLOCK * self.prompt, BLOCK * self.transfer, trip)


@dataclass(frozen=True, slots=True)
class Plan:
    """How replicas are used; `num_prefill` of them compute prompts for the others alone."""

    name: str
    num_replicas: int
    num_prefill: int = 0
    has_store: bool = False
    has_prefixes: bool = True
    num_masters: int = 1
    max_running: int = 16
    budget: int = 512  # tokens of a step
    cache_tokens: int = 60_000  # of a replica
    restart: float = 20.0
    price: float = 0.05  # of a replica, an hour
