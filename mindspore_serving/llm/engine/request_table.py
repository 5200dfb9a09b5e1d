"""Open requests, and the completion of every sequence.

The first completion of a request has a sequence from the start.  The other ones are pending until
the prompt is computed; then each is forked from the first.  The table neither schedules nor
samples.
"""

from mindspore_serving.core.sampling_params import FinishReason, Generated
from mindspore_serving.llm.engine.completion import CompletionState, SamplingBatch
from mindspore_serving.llm.engine.request import GenerationRequest
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence
from mindspore_serving.llm.engine.speculation import Speculation


class RequestTable:
    """Requests by id, completions by sequence."""

    def __init__(self, speculation: Speculation) -> None:
        self.completions: dict[Sequence, CompletionState] = {}  # those that are not finished
        self._requests: dict[str, GenerationRequest] = {}
        self._speculation = speculation

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, request: GenerationRequest, sequence: Sequence) -> None:
        """Add a request with its first completion."""
        self._requests[request.request_id] = request
        draft_state = self._speculation.begin(request.prompt_ids, sequence.scope, request.params)
        self.completions[sequence] = CompletionState(request, 0, sequence, draft_state)

    def find(self, request_id: str) -> tuple[GenerationRequest, list[CompletionState]] | None:
        """Return a request and its unfinished completions; None if it is not open."""
        request = self._requests.get(request_id)
        if request is None or not request.open:
            return None
        completions = [
            completion for completion in self.completions.values() if completion.request is request
        ]
        return request, completions

    def read(
        self, scheduled: Scheduled
    ) -> tuple[SamplingBatch, dict[CompletionState, list[CompletionState]]]:
        """Return the rows to sample, and the pending completions by the first of their request."""
        batch, forks = SamplingBatch(), {}
        for row, sequence in zip(scheduled.step.rows, scheduled.sequences, strict=True):
            completion = self.completions.get(sequence)
            if completion is None:  # it was aborted while the step was in flight
                batch.skip(row)
                continue
            siblings: list[CompletionState] = []
            is_computed = row.start + len(row.tokens) >= len(sequence.tokens)
            if completion.request.num_to_fork and is_computed and completion.search is None:
                siblings = forks[completion] = self.pending(completion)
            batch.add(completion, row, siblings)
        return batch, forks

    def remove(self, completion: CompletionState) -> Sequence | None:
        """Remove a finished completion, and with the last one its request.

        Returns its sequence, None if it has none.
        """
        request = completion.request
        request.open.discard(completion.index)
        if not request.open:
            self.remove_request(request.request_id)
        if self.completions.get(completion.sequence) is not completion:
            return None
        del self.completions[completion.sequence]
        return completion.sequence

    def remove_request(self, request_id: str) -> None:
        """Free the id of a request for another request."""
        self._requests.pop(request_id, None)

    def has_adapter(self, number: int) -> bool:
        """Return whether an unfinished completion uses the LoRA adapter `number`."""
        return any(sequence.adapter == number for sequence in self.completions)

    def pending(self, first: CompletionState) -> list[CompletionState]:
        """Return the pending completions beside the `first` one, ready for their first tokens."""
        request = first.request
        return [
            CompletionState(
                request, index, first.sequence, first.draft_state and first.draft_state.fork()
            )
            for index in range(1, 1 + request.num_to_fork)
        ]

    def fork(self, completion: CompletionState, token: int) -> Sequence:
        """Give a pending completion a sequence: that of the first one, followed by `token`."""
        completion.sequence = completion.sequence.fork(completion.index, token)
        self.completions[completion.sequence] = completion
        return completion.sequence

    def end_pending(
        self, request: GenerationRequest, reason: FinishReason, cause: str | None = None
    ) -> list[tuple[str, Generated]]:
        """Finish the pending completions of `request`; return the outputs that say so."""
        first = request.params.n - request.num_to_fork
        indices = range(first, request.params.n)
        request.num_to_fork = 0
        request.open.difference_update(indices)
        ends = [Generated(index, (), "", None, reason, cause) for index in indices]
        return [(request.request_id, end) for end in ends]
