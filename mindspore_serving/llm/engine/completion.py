"""A completion of a request: from the logits of a step to tokens to outputs.  Knows no cache."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mindspore_serving.core.sampling_params import FinishReason, Generated, join
from mindspore_serving.llm.engine.beams import BeamSearch
from mindspore_serving.llm.engine.request import GenerationRequest
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.speculation import DraftState
from mindspore_serving.llm.grammar.state import ConstrainedRows, GrammarState
from mindspore_serving.llm.sampling.best import num_best, sample_best
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import Sampled, prompt_logprobs, sample
from mindspore_serving.llm.step import BestLogits, Logits, Row


class CompletionState:
    """A completion that is not finished.

    Without `draft_state` it has no draft tokens, without `grammar` any text is allowed.
    """

    __slots__ = (
        "_checker", "_row", "_thinking", "grammar", "draft_state", "index", "output_ids", "request",
        "search", "sequence"
    )  # fmt: skip

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        sequence: Sequence,
        draft_state: DraftState | None,
    ) -> None:
        self.request = request
        self.index = index
        self.sequence = sequence
        self.draft_state = draft_state
        grammar, ignores_eos = request.grammar, request.params.ignore_eos
        self.grammar = None if grammar is None else grammar.begin(allows_end=not ignores_eos)
        self.output_ids: list[int] = []
        self._thinking = request.thinking.begin() if request.thinking else None
        self._checker = request.begin_text(index)
        self.search = sequence.search
        self._row = request.begin_row(index, self.output_ids)

    def row(self) -> SampleRow:
        """Return the row to sample the next token from."""
        self._row.position = len(self.output_ids)
        if self._thinking is not None:
            self._row.forced = self._thinking.forced
        elif self._end is not None:
            self._row.forced = self._end
        return self._row

    @property
    def _end(self) -> int | None:
        """Token that ends the answer here, as it has no room for more; None for any token."""
        encoding, is_last = self.request.encoding, self._row.position == self.request.max_tokens - 1
        return encoding.answer_end if encoding and is_last else None

    def draft_rows(self, draft_tokens: list[int]) -> list[SampleRow]:
        """Return the rows to sample from behind each of `draft_tokens`, if it is accepted."""
        row = self.row()
        rows = [row.after(draft_tokens[:count]) for count in range(1, len(draft_tokens) + 1)]
        if self._thinking is not None:
            for count, draft_row in enumerate(rows, 1):
                draft_row.forced = self._thinking.after(draft_tokens[:count]).forced
        return rows

    def write(self, token: Sampled) -> Generated:
        """Append the sampled token and return the output.

        If the grammar allows no token, the completion ends there if the grammar is complete.
        """
        if token.is_barred and self.grammar is not None and self.grammar.is_complete:
            return self.end(FinishReason.STOP)
        if token.error is not None:
            blames = token.blames_request
            return self._checker.end(FinishReason.ERROR, token.error, blames_request=blames)
        generated = self._checker.check(token.token_id, token.logprobs)
        if self._end is not None and generated.finish_reason is FinishReason.STOP:
            generated = replace(generated, finish_reason=FinishReason.LENGTH)
        if self.grammar is not None:
            generated = self._advance_grammar(self.grammar, token.token_id, generated)
        self.output_ids.append(token.token_id)
        if self._thinking is not None:
            self._thinking = self._thinking.after((token.token_id,))
        return generated

    def write_draft(self, sampled: list[Sampled], draft_tokens: Iterable[int]) -> Generated:
        """Append the first of `sampled` and those after accepted draft tokens; return them."""
        parts = [self.write(sampled[0])]
        for draft_token, token in zip(draft_tokens, sampled[1:], strict=False):
            last = parts[-1]
            if last.finish_reason is not None or last.token_ids != (draft_token,):
                break
            parts.append(self.write(token))
        return join(parts)

    def with_counts(self, last: Generated) -> Generated:
        """Return the last output with its numbers of cached, draft and accepted tokens."""
        draft_state = self.draft_state
        return replace(
            last,
            num_cached_tokens=max(0, self.sequence.num_cached),
            num_draft_tokens=draft_state.num_draft_tokens if draft_state else 0,
            num_accepted_tokens=draft_state.num_accepted if draft_state else 0,
        )

    def write_search(self) -> list[Generated]:
        """Return the answers of a search that is done."""
        assert self.search is not None
        request, outputs = self.request, []
        beams = self.search.best(request.params.n)
        for index in range(request.params.n):
            checker = request.begin_text(index)
            if self.search.problem:
                outputs.append(checker.end(FinishReason.ERROR, self.search.problem))
                continue
            beam = beams[index] if index < len(beams) else None
            generated = checker.check_all(beam.tokens, beam.logprobs or None) if beam else None
            is_full = beam is not None and len(beam.tokens) == request.max_tokens
            if generated is None or not checker.is_finished:
                ended = checker.end(FinishReason.LENGTH)
                generated = join([generated, ended]) if generated else ended
            elif is_full and request.encoding and request.encoding.answer_end is not None:
                generated = replace(generated, finish_reason=FinishReason.LENGTH)
            outputs.append(generated)
        return outputs

    def end(self, reason: FinishReason, cause: str | None = None) -> Generated:
        """Return the last output, for a reason that does not come from its text."""
        return self._checker.end(reason, cause)

    def _advance_grammar(
        self, grammar: GrammarState, token_id: int, generated: Generated
    ) -> Generated:
        """Advance the grammar, which may end the answer, also with the last token that fits."""
        if generated.finish_reason not in (None, FinishReason.LENGTH):
            return generated
        grammar.advance(token_id)
        if grammar.is_finished:
            return join([generated, self.end(FinishReason.STOP)])
        if grammar.error is not None:
            ended = self._checker.end(FinishReason.ERROR, grammar.error, blames_request=True)
            return join([generated, ended])
        return generated


PROMPT = -1  # the `Generated.index` of a piece of the prompt itself


@dataclass(slots=True)
class SamplingBatch:
    """Rows to sample from in a step: filled row by row in the order of the step, then used once."""

    counts: list[int] = field(default_factory=list)  # tokens to sample for each row of the step
    constrained: list[ConstrainedRows] = field(default_factory=list)  # rows that need masks
    _sampled: list[SampleRow] = field(default_factory=list)
    _logit_rows: list[int] = field(default_factory=list)  # for each of `_sampled`
    # Completion, index of its first row of logits, number of rows:
    _scored: list[tuple[CompletionState, int, int]] = field(default_factory=list)
    # Search, index of its first row of logits, number of rows:
    _searched: list[tuple[BeamSearch, int, int]] = field(default_factory=list)
    _num_logits: int = 0

    def add(self, completion: CompletionState, row: Row, siblings: list[CompletionState]) -> None:
        """Add the completion of `row`, and its `siblings`, sampled from the same logits.

        `siblings` are the pending completions of the request, which begin when its prompt is
        computed.
        """
        first = self._num_logits
        self._num_logits += row.num_logits
        if completion.search is not None:
            if row.num_logits:
                self._searched.append((completion.search, first, row.num_logits))
            self.counts.append(0)
            return
        known = len(completion.sequence.tokens) - row.start
        num_sampled = max(0, len(row.tokens) - known + 1)
        if completion.request.needs_scores:
            self._scored.append((completion, first, row.num_logits - num_sampled))
        if num_sampled == 1 and not siblings and completion.grammar is None:  # nearly always
            self._sampled.append(completion.row())
            self._logit_rows.append(self._num_logits - 1)
        elif num_sampled:
            begin = self._num_logits - num_sampled
            draft_tokens = list(row.tokens[known:])
            self._sample(
                completion, [completion.row(), *completion.draft_rows(draft_tokens)], draft_tokens
            )
            for sibling in siblings:
                self._sample(sibling, [sibling.row()], [])
            self._logit_rows += [*range(begin, self._num_logits), *[begin] * len(siblings)]
            num_sampled += len(siblings)
        self.counts.append(num_sampled)

    def skip(self, row: Row) -> None:
        """Leave out a row, as its completion has ended while the step was in flight."""
        self._num_logits += row.num_logits
        self.counts.append(0)

    def _sample(
        self, completion: CompletionState, rows: list[SampleRow], draft_tokens: list[int]
    ) -> None:
        self._sampled += rows
        if completion.grammar is not None:
            self.constrained.append(ConstrainedRows(completion.grammar, rows, draft_tokens))

    def score(self, logits: Logits) -> list[tuple[str, Generated]]:
        """Return the log-probabilities of prompt tokens; call it before `sample` overwrites logits.

        The very first token of a prompt follows nothing: it has none.
        """
        pieces = []
        for completion, first, count in self._scored:
            request = completion.request
            start, end = max(1, request.num_scored), max(1, request.num_scored) + count
            targets = request.prompt_ids[start:end]
            k = request.params.prompt_logprobs or 0
            scores = prompt_logprobs(logits[first : first + count], targets, k)
            if request.num_scored == 0:
                targets, scores = [request.prompt_ids[0], *targets], [(), *scores]
            if not targets:
                continue  # a preempted prompt is computed again; its pieces were returned before
            request.num_scored = end
            piece = Generated(PROMPT, tuple(targets), "", tuple(scores))
            pieces.append((request.request_id, piece))
        return pieces

    def search(self, logits: Logits) -> None:
        """Continue the beams; call it before `sample` overwrites logits."""
        for search, first, count in self._searched:
            search.advance(logits[first : first + count])

    def num_best(self) -> int:
        """Return how many of the best logits of each row are needed; 0 for all of them."""
        is_plain = not (self._scored or self.constrained or self._searched)
        return num_best(self._sampled) if is_plain else 0

    def sample_best(self, best: BestLogits) -> list[Sampled]:
        """Return what `sample` does, from the best logits of each row if these suffice."""
        is_plain = self._logit_rows == list(range(len(best.values)))
        sampled = sample_best(best if is_plain else best.take(self._logit_rows), self._sampled)
        return self.sample(best.read_all()) if sampled is None else sampled

    def sample(self, logits: Logits) -> list[Sampled]:
        """Return the sampled tokens in order of the rows, `counts` of them for each."""
        if not self._sampled:
            return []
        if self._logit_rows != list(range(len(logits))):
            logits = logits[self._logit_rows]
        sampled = sample(logits, self._sampled)
        if any(group.error for group in self.constrained):
            self._fail(sampled)
        return sampled

    def _fail(self, sampled: list[Sampled]) -> None:
        """Set an error for the completions whose masks could not be computed."""
        failed = {id(row): group for group in self.constrained if group.error for row in group.rows}
        for index, row in enumerate(self._sampled):
            group = failed.get(id(row))
            if group is not None:
                sampled[index] = Sampled(-1, error=group.error, blames_request=group.blames_request)
