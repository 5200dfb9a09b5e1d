"""The requests that are open, and the branch (one sampled answer) of every sequence.

The first branch of a request has a sequence from the start.  The others are pending until the
prompt is computed; then each is forked from the first.  It neither schedules nor samples.
"""

from mindspore_serving.core.sampling_params import FinishReason, Generated
from mindspore_serving.llm.engine.branch import Branch
from mindspore_serving.llm.engine.request import GenerationRequest
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.speculation import Speculation


class RequestTable:
    """Requests by id, branches by sequence."""

    def __init__(self, speculation: Speculation) -> None:
        self.branches: dict[Sequence, Branch] = {}  # those that are not finished
        self._requests: dict[str, GenerationRequest] = {}
        self._speculation = speculation

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, request: GenerationRequest, sequence: Sequence) -> None:
        """Add a request with its first branch; the others are pending."""
        self._requests[request.request_id] = request
        guesser = self._speculation.begin(request.prompt_ids, sequence.scope, request.params)
        self.branches[sequence] = Branch(request, 0, sequence, guesser)

    def find(self, request_id: str) -> tuple[GenerationRequest, list[Branch]] | None:
        """A request and its unfinished branches; None if it is not open."""
        request = self._requests.get(request_id)
        if request is None or not request.open:
            return None
        branches = [branch for branch in self.branches.values() if branch.request is request]
        return request, branches

    def remove(self, branch: Branch) -> Sequence | None:
        """Remove a finished branch, the last with its request; its sequence, if it has one."""
        request = branch.request
        request.open.discard(branch.index)
        if not request.open:
            self.remove_request(request.request_id)
        if self.branches.get(branch.sequence) is not branch:
            return None
        del self.branches[branch.sequence]
        return branch.sequence

    def remove_request(self, request_id: str) -> None:
        """From now on another request may have this id."""
        self._requests.pop(request_id, None)

    def has_adapter(self, number: int) -> bool:
        """Whether an unfinished branch has the LoRA adapter of this number."""
        return any(sequence.adapter == number for sequence in self.branches)

    def pending(self, first: Branch) -> list[Branch]:
        """The pending branches beside the `first` one, ready for their first tokens."""
        request = first.request
        return [
            Branch(request, index, first.sequence, first.guesser and first.guesser.fork())
            for index in range(1, 1 + request.num_to_fork)
        ]

    def fork(self, branch: Branch, token: int) -> Sequence:
        """Give a pending branch a sequence: that of the first branch, followed by `token`."""
        branch.sequence = branch.sequence.fork(branch.index, token)
        self.branches[branch.sequence] = branch
        return branch.sequence

    def end_pending(
        self, request: GenerationRequest, reason: FinishReason, cause: str | None = None
    ) -> list[tuple[str, Generated]]:
        """Finish the pending branches; the outputs that say so."""
        first = request.params.n - request.num_to_fork
        indices = range(first, request.params.n)
        request.num_to_fork = 0
        request.open.difference_update(indices)
        ends = [Generated(index, (), "", None, reason, cause) for index in indices]
        return [(request.request_id, end) for end in ends]
