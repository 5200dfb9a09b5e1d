"""Payloads of requests that are used where they lie, in the arena of the master.

An array of a stage may be a view of one, and a script may keep it for longer than its request: the
room is the master's again when nobody has it any more.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

from mindspore_serving.core.lending import lend
from mindspore_serving.ipc.arena import ArenaView, NoArena
from mindspore_serving.ipc.messages import Payload, Slice

MOST_KEPT = 256 << 20  # bytes that scripts keep; with more, payloads come read only: to be copied


class Loan:
    """A payload in shared memory.  Of its answer and its return, which may be on another thread,
    the second takes effect: the room must stay until both have been.
    """

    __slots__ = ("_first", "size", "offset")

    def __init__(self, payload: Slice) -> None:
        self.offset, self.size = payload.offset, payload.length
        self._first = [True]

    def is_first(self) -> bool:
        """Once True; asked by both.  One thread at a time can take the entry of a list."""
        try:
            return self._first.pop()
        except IndexError:
            return False


class Borrower:
    """What a worker has of the payloads that it got."""

    def __init__(self, view: ArenaView | NoArena) -> None:
        self._view = view
        self._kept = 0  # bytes of what was answered and is not returned
        self._returned: deque[Loan] = deque()

    def borrow(self, payloads: Sequence[Payload]) -> "tuple[list[bytes | memoryview], list[Loan]]":
        """The bytes of `payloads`, those in shared memory writable, and the loans that this makes.
        Each is to be given to `answered`.
        """
        loans: list[Loan] = []
        return [one if type(one) is bytes else self._lend(one, loans) for one in payloads], loans

    def _lend(self, payload: Payload, loans: list[Loan]) -> bytes | memoryview:
        data = self._view.get(payload)
        assert isinstance(payload, Slice)
        assert isinstance(data, memoryview)
        loan = Loan(payload)
        loans.append(loan)
        data = lend(data, partial(self._return, loan))
        return data if self._kept <= MOST_KEPT else data.toreadonly()

    def answered(self, loans: Sequence[Loan]) -> list[int]:
        """The offsets of `loans`, whose request is answered, that somebody still has."""
        kept = [loan for loan in loans if loan.is_first()]
        self._kept += sum(loan.size for loan in kept)
        return [loan.offset for loan in kept]

    def take_returned(self) -> list[int]:
        """The offsets of what was kept and is not any more."""
        found = []
        while self._returned:
            loan = self._returned.popleft()
            self._kept -= loan.size
            found.append(loan.offset)
        return found

    def _return(self, loan: Loan) -> None:
        if not loan.is_first():
            self._returned.append(loan)
