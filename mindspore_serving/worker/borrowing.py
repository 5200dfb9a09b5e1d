"""Request payloads that stages use in place, in the arena of the master.

An array of a stage can be a view of such a payload, and user code can keep it for longer than the
request.  The master gets the memory back when no reference is left.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

from mindspore_serving.core.lending import lend
from mindspore_serving.ipc.arena import ArenaView, NoArena
from mindspore_serving.ipc.messages import Payload, Slice

MAX_KEPT = 256 << 20  # bytes that user code keeps; above it payloads come read-only, to be copied


class Loan:
    """Payload in shared memory that this worker borrows.

    The loan ends with the second of two events: its request is answered, and no reference to it is
    left (which can happen on another thread).
    """

    __slots__ = ("_first", "size", "offset")

    def __init__(self, payload: Slice) -> None:
        self.offset, self.size = payload.offset, payload.length
        self._first = [True]

    def is_first(self) -> bool:
        """Return True on the first call, False afterwards.

        Both events call it, maybe at once: `list.pop` is atomic.
        """
        try:
            return self._first.pop()
        except IndexError:
            return False


class Borrower:
    """Payloads that a worker borrows from the master's arena."""

    def __init__(self, view: ArenaView | NoArena) -> None:
        self._view = view
        self._kept = 0  # bytes of loans whose request is answered but which are still referenced
        self._returned: deque[Loan] = deque()

    def borrow(self, payloads: Sequence[Payload]) -> "tuple[list[bytes | memoryview], list[Loan]]":
        """Return the bytes of `payloads`, and the loans of those in shared memory.

        Bytes in shared memory are writable.  Each loan must be passed to `answered`.
        """
        loans: list[Loan] = []
        buffers = [data if type(data) is bytes else self._lend(data, loans) for data in payloads]
        return buffers, loans

    def _lend(self, payload: Payload, loans: list[Loan]) -> bytes | memoryview:
        data = self._view.get(payload)
        assert isinstance(payload, Slice)
        assert isinstance(data, memoryview)
        loan = Loan(payload)
        loans.append(loan)
        data = lend(data, partial(self._return, loan))
        return data if self._kept <= MAX_KEPT else data.toreadonly()

    def answered(self, loans: Sequence[Loan]) -> list[int]:
        """Note that the request of `loans` is answered; return the offsets still in use."""
        kept = [loan for loan in loans if loan.is_first()]
        self._kept += sum(loan.size for loan in kept)
        return [loan.offset for loan in kept]

    def take_returned(self) -> list[int]:
        """Return the offsets of loans that ended after their request was answered."""
        offsets = []
        while self._returned:
            loan = self._returned.popleft()
            self._kept -= loan.size
            offsets.append(loan.offset)
        return offsets

    def _return(self, loan: Loan) -> None:
        if not loan.is_first():
            self._returned.append(loan)
