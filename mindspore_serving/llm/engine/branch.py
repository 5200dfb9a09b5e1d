"""One answer to a request: from sampled tokens to outputs.  Knows no cache and no runner."""

from mindspore_serving.core.generation import FinishReason, Generated, join
from mindspore_serving.llm.engine.request import Request
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.speculation import Drafter
from mindspore_serving.llm.grammar.state import GrammarState
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import Sampled
from mindspore_serving.llm.tokenization.stopping import Detokenizer, Emitted, StopChecker


class Branch:
    """An unfinished answer.  `drafter` None guesses nothing, `grammar` None allows any text."""

    __slots__ = (
        "_checker", "_row", "grammar", "index", "drafter", "output_ids", "request", "sequence"
    )  # fmt: skip

    def __init__(
        self, request: Request, index: int, sequence: Sequence, drafter: Drafter | None
    ) -> None:
        self.request = request
        self.index = index
        self.sequence = sequence
        self.drafter = drafter
        self.grammar = _state(request)
        self.output_ids: list[int] = []
        self._checker = _checker(request)
        self._row = self._sample_row(self.output_ids)

    def row(self) -> SampleRow:
        """The row to sample the next token from."""
        self._row.position = len(self.output_ids)
        return self._row

    def guess_rows(self, guesses: list[int]) -> list[SampleRow]:
        """The rows to sample the token after each of `guesses` from, if all up to it are right."""
        counts = range(1, len(guesses) + 1)
        return [self._sample_row([*self.output_ids, *guesses[:count]]) for count in counts]

    def write(self, token: Sampled) -> Generated:
        """Take the next token; if none is allowed, a grammar may be complete."""
        if token.is_barred and self.grammar is not None and self.grammar.is_complete:
            return self.end(FinishReason.STOP)
        if token.error is not None:
            return self.end(FinishReason.ERROR, token.error)
        token_id = token.token_id
        emitted = self._checker.check(token_id)
        if self.grammar is not None:
            emitted = self._follow(self.grammar, token_id, emitted)
        self.output_ids.append(token_id)
        return Generated(
            self.index,
            (token_id,),
            emitted.text,
            None if token.logprobs is None else (token.logprobs,),
            emitted.finish_reason,
            emitted.stop_reason,
        )

    def write_guessed(self, sampled: list[Sampled], guesses: list[int]) -> Generated:
        """Take the next token and those after right `guesses`, up to the end of the text."""
        parts = [self.write(sampled[0])]
        for guess, token in zip(guesses, sampled[1:], strict=True):
            last = parts[-1]
            if last.finish_reason is not None or last.token_ids != (guess,):
                break
            parts.append(self.write(token))
        return join(parts)

    def end(self, reason: FinishReason, cause: str | None = None) -> Generated:
        """The last output of this answer, for a reason that is not in its text."""
        return Generated(self.index, (), self._checker.finish(), None, reason, cause)

    def guess(self, new_tokens: tuple[int, ...], most: int) -> None:
        """Give the sequence a draft of what follows, if there is one."""
        if self.drafter is not None:
            self.drafter.extend(new_tokens)
            draft = self.drafter.propose(most)
            if self.grammar is not None:
                draft = self.grammar.forced(most) or self.grammar.possible(draft)
            self.sequence.draft = draft

    def _follow(self, grammar: GrammarState, token_id: int, emitted: Emitted) -> Emitted:
        """Advance the grammar, which may end the answer, also with the last token that fits."""
        if emitted.finish_reason not in (None, FinishReason.LENGTH):
            return emitted
        grammar.advance(token_id)
        if grammar.is_finished:
            return Emitted(emitted.text + self._checker.finish(), FinishReason.STOP)
        if grammar.error is not None:
            text = emitted.text + self._checker.finish()
            return Emitted(text, FinishReason.ERROR, grammar.error)
        return emitted

    def _sample_row(self, output_ids: list[int]) -> SampleRow:
        request = self.request
        return SampleRow(
            params=request.params,
            prompt_ids=request.prompt_ids,
            output_ids=output_ids,
            end_ids=request.end_ids,
            position=len(output_ids),
            seed=request.seed_of(self.index),
            bad_words_ids=request.bad_words_ids,
        )


def _state(request: Request) -> GrammarState | None:
    if request.grammar is None:
        return None
    return request.grammar.begin(has_ends=not request.params.ignore_eos)


def _checker(request: Request) -> StopChecker:
    decoding = None
    if request.tokenizer is not None:
        skips = request.params.skip_special_tokens
        decoding = Detokenizer(request.tokenizer, skips, continues=request.continues)
    return StopChecker(request.params, request.eos_ids, decoding, request.max_tokens)
