"""Turns of the tenants whose sequences wait: a tenant with many does not delay one with few.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) by tokens.  A sequence gets its turn when it
arrives: the virtual time, which is the turn of the sequence that was admitted last, or later by
the tokens of the tenant's sequences before it.  The tokens of an answer are estimated by the
tenant's answers before, and corrected at its end.  Sequences of a single tenant, or of none, keep
the order of their arrival.
"""

from dataclasses import dataclass

from mindspore_serving.llm.engine.sequence import Sequence

MAX_TENANTS = 1024  # with an account; those that have caught up are forgotten first
_SMOOTHING = 0.2


@dataclass(slots=True)
class _Account:
    next_turn: int  # of the next sequence, by the tokens of those before
    last_turn: int = 0  # of the sequence before, which the next does not overtake
    mean_answer: float = 0.0  # tokens, smoothed


class FairTurns:
    """Accounts of tenants, and the virtual time."""

    def __init__(self) -> None:
        self._now = 0
        self._accounts: dict[str, _Account] = {}

    def enter(self, sequence: Sequence) -> None:
        """Set the turn of a sequence that arrives, and charge its tenant."""
        account = self._accounts.get(sequence.tenant)
        if account is None:
            account = self._open(sequence.tenant)
        sequence.num_charged = len(sequence.tokens) + int(account.mean_answer)
        turn = max(self._now, account.next_turn, account.last_turn)
        account.next_turn, account.last_turn = turn + sequence.num_charged, turn
        sequence.turn = turn

    def fork(self, child: Sequence) -> None:
        """Charge the tenant for a further answer to a prompt."""
        account = self._accounts.get(child.tenant)
        if account is not None:
            account.next_turn += int(account.mean_answer)

    def begin(self, sequence: Sequence) -> None:
        """Let the virtual time follow a sequence that is admitted."""
        self._now = max(self._now, sequence.turn)

    def leave(self, sequence: Sequence) -> None:
        """Update the account of a sequence that ends, by the tokens that it has."""
        account = self._accounts.get(sequence.tenant)
        if account is not None:
            excess = len(sequence.tokens) - sequence.num_charged
            account.next_turn = max(self._now, account.next_turn + excess)
            answer = max(0.0, account.mean_answer + excess)
            account.mean_answer += _SMOOTHING * (answer - account.mean_answer)

    def _open(self, tenant: str) -> _Account:
        if len(self._accounts) >= MAX_TENANTS:
            behind = {t: a for t, a in self._accounts.items() if a.next_turn > self._now}
            self._accounts = behind if len(behind) < MAX_TENANTS else {}
        return self._accounts.setdefault(tenant, _Account(self._now))
