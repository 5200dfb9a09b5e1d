"""Tokens of another engine as our outputs: stops and text are ours, so they are the same."""

from collections.abc import Sequence

from mindspore_serving.core.sampling_params import FinishReason, Generated, TokenLogprob, join
from mindspore_serving.llm.engine.request import Request

Logprobs = tuple[TokenLogprob, ...]


class Answer:
    """One of the answers to a request."""

    def __init__(self, request: Request, index: int) -> None:
        self.index = index
        self.is_done = False
        self._checker = request.begin_text()

    def write(
        self, token_ids: Sequence[int], logprobs: Sequence[Logprobs] | None
    ) -> Generated | None:
        """Take the next tokens, up to the end of the text; None for no tokens."""
        parts = []
        for place, token_id in enumerate(token_ids):
            emitted = self._checker.check(token_id)
            parts.append(
                Generated(
                    self.index,
                    (token_id,),
                    emitted.text,
                    None if logprobs is None else (logprobs[place],),
                    emitted.finish_reason,
                    emitted.stop_reason,
                )
            )
            self.is_done = emitted.finish_reason is not None
            if self.is_done:
                break
        return join(parts) if parts else None

    def end(self, reason: FinishReason, cause: str | None = None) -> Generated:
        """Its last output, for a reason that is not in its text."""
        self.is_done = True
        return Generated(self.index, (), self._checker.finish(), None, reason, cause)
