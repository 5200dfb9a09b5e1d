"""Who is being answered: the requests that are open, and the branch of every sequence.

An answer is unborn until its prompt is read, and then gets a sequence of its own; it is closed by
its finish reason.  The roster only keeps the list: it neither schedules nor writes.
"""

from mindspore_serving.core.generation import FinishReason, Generated
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.branch import Branch
from mindspore_serving.llm.engine.request import Request
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.speculation import MakeDrafter


class Roster:
    """Requests by id, branches by sequence."""

    def __init__(self, config: EngineConfig, make_drafter: MakeDrafter) -> None:
        self.branches: dict[Sequence, Branch] = {}  # the open ones
        self._requests: dict[str, Request] = {}
        self._config = config
        self._make_drafter = make_drafter

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def open(self, request: Request, sequence: Sequence) -> None:
        """Enter a request with its first branch; the others are unborn."""
        self._requests[request.request_id] = request
        self.branches[sequence] = self._branch(request, 0, sequence)

    def close(self, branch: Branch) -> Sequence | None:
        """Strike out a branch, and its request if it was the last.  Its sequence, if it had come
        to have one."""
        request = branch.request
        request.open.discard(branch.index)
        if not request.open:
            self.forget(request.request_id)
        if self.branches.get(branch.sequence) is not branch:
            return None
        del self.branches[branch.sequence]
        return branch.sequence

    def forget(self, request_id: str) -> None:
        """Make the id free for another request."""
        self._requests.pop(request_id, None)

    def of(self, request_id: str) -> tuple[Request, list[Branch]] | None:
        """A request and its open branches; None if it is not open."""
        request = self._requests.get(request_id)
        if request is None or not request.open:
            return None
        branches = [branch for branch in self.branches.values() if branch.request is request]
        return request, branches

    def unborn(self, parent: Branch) -> list[Branch]:
        """The other answers to a prompt, ready for their first tokens."""
        request = parent.request
        return [
            self._branch(request, index, parent.sequence)
            for index in range(1, 1 + request.num_to_fork)
        ]

    def bear(self, sibling: Branch, token: int) -> Sequence:
        """Give `sibling` a sequence of its own, that begins with `token`."""
        sibling.sequence = sibling.sequence.fork(sibling.index, token)
        self.branches[sibling.sequence] = sibling
        return sibling.sequence

    def end_unborn(
        self, request: Request, reason: FinishReason, cause: str | None = None
    ) -> list[tuple[str, Generated]]:
        """The ends of the answers that never began."""
        first = request.params.n - request.num_to_fork
        indices = range(first, request.params.n)
        request.num_to_fork = 0
        request.open.difference_update(indices)
        ends = [Generated(index, (), "", None, reason, cause) for index in indices]
        return [(request.request_id, end) for end in ends]

    def _branch(self, request: Request, index: int, sequence: Sequence) -> Branch:
        drafter = None
        if self._config.num_speculative_tokens:
            drafter = self._make_drafter(request.prompt_ids)
        return Branch(request, index, sequence, drafter)
