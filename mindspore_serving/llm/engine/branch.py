"""One answer to a request: from a step's logits to tokens to outputs.  Knows no cache."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mindspore_serving.core.sampling_params import FinishReason, Generated, join
from mindspore_serving.llm.engine.request import GenerationRequest
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.speculation import Guesser
from mindspore_serving.llm.grammar.state import ConstrainedRows, GrammarState
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import Sampled, prompt_logprobs, sample
from mindspore_serving.llm.step import Logits, Row


class Branch:
    """An unfinished answer.  `guesser` None guesses nothing, `grammar` None allows any text."""

    __slots__ = (
        "_checker", "_row", "grammar", "guesser", "index", "output_ids", "request", "sequence"
    )  # fmt: skip

    def __init__(
        self, request: GenerationRequest, index: int, sequence: Sequence, guesser: Guesser | None
    ) -> None:
        self.request = request
        self.index = index
        self.sequence = sequence
        self.guesser = guesser
        grammar, ignores_eos = request.grammar, request.params.ignore_eos
        self.grammar = None if grammar is None else grammar.begin(allows_end=not ignores_eos)
        self.output_ids: list[int] = []
        self._checker = request.begin_text(index)
        self._row = SampleRow(
            params=request.params,
            prompt_ids=request.prompt_ids,
            output_ids=self.output_ids,
            end_ids=request.end_ids,
            position=0,
            seed=request.seed_of(index),
            bad_words_ids=request.bad_words_ids,
        )

    def row(self) -> SampleRow:
        """The row to sample the next token from."""
        self._row.position = len(self.output_ids)
        return self._row

    def guess_rows(self, guesses: list[int]) -> list[SampleRow]:
        """The rows to sample the token after each of `guesses` from, if all up to it are right."""
        row = self.row()
        return [row.after(guesses[:count]) for count in range(1, len(guesses) + 1)]

    def write(self, token: Sampled) -> Generated:
        """Take the next token; if none is allowed, a grammar may be complete."""
        if token.is_barred and self.grammar is not None and self.grammar.is_complete:
            return self.end(FinishReason.STOP)
        if token.error is not None:
            blames = token.blames_request
            return self._checker.end(FinishReason.ERROR, token.error, blames_request=blames)
        generated = self._checker.check(token.token_id, token.logprobs)
        if self.grammar is not None:
            generated = self._follow(self.grammar, token.token_id, generated)
        self.output_ids.append(token.token_id)
        return generated

    def write_guessed(self, sampled: list[Sampled], guesses: Iterable[int]) -> Generated:
        """Take the first of `sampled` and those after right `guesses`, up to the text's end."""
        parts = [self.write(sampled[0])]
        for guess, token in zip(guesses, sampled[1:], strict=False):
            last = parts[-1]
            if last.finish_reason is not None or last.token_ids != (guess,):
                break
            parts.append(self.write(token))
        return join(parts)

    def counted(self, last: Generated) -> Generated:
        """The last output, with the numbers that it has."""
        guesser = self.guesser
        return replace(
            last,
            num_cached_tokens=max(0, self.sequence.num_cached),
            num_guesses=guesser.num_guesses if guesser else 0,
            num_right_guesses=guesser.num_right if guesser else 0,
        )

    def end(self, reason: FinishReason, cause: str | None = None) -> Generated:
        """The last output of this answer, for a reason that is not in its text."""
        return self._checker.end(reason, cause)

    def _follow(self, grammar: GrammarState, token_id: int, generated: Generated) -> Generated:
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
    """Filled row by row in the order of the step, then used once."""

    counts: list[int] = field(default_factory=list)  # of each row of the step: tokens sampled
    constrained: list[ConstrainedRows] = field(default_factory=list)  # rows whose masks are missing
    _sampled: list[SampleRow] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)  # the logits of each of those
    # Branch, first of its logits, and how many:
    _scored: list[tuple[Branch, int, int]] = field(default_factory=list)
    _num_logits: int = 0

    def add(self, branch: Branch, row: Row, siblings: list[Branch]) -> None:
        """`siblings` are the pending branches of the request, sampled from the same logits."""
        first = self._num_logits
        self._num_logits += row.num_logits
        known = len(branch.sequence.tokens) - row.start
        num_sampled = max(0, len(row.tokens) - known + 1)
        if branch.request.is_to_score:
            self._scored.append((branch, first, row.num_logits - num_sampled))
        if num_sampled == 1 and not siblings and branch.grammar is None:  # nearly always
            self._sampled.append(branch.row())
            self._places.append(self._num_logits - 1)
        elif num_sampled:
            place = self._num_logits - num_sampled
            guesses = list(row.tokens[known:])
            self._sample(branch, [branch.row(), *branch.guess_rows(guesses)], guesses)
            for sibling in siblings:
                self._sample(sibling, [sibling.row()], [])
            self._places += [*range(place, self._num_logits), *[place] * len(siblings)]
            num_sampled += len(siblings)
        self.counts.append(num_sampled)

    def _sample(self, branch: Branch, rows: list[SampleRow], guesses: list[int]) -> None:
        self._sampled += rows
        if branch.grammar is not None:
            self.constrained.append(ConstrainedRows(branch.grammar, rows, guesses))

    def score(self, logits: Logits) -> list[tuple[str, Generated]]:
        """The log-probabilities of the pieces of prompts, before `sample` overwrites logits.

        The very first token of a prompt follows nothing: it has none.
        """
        pieces = []
        for branch, first, count in self._scored:
            request = branch.request
            start, end = max(1, request.num_scored), max(1, request.num_scored) + count
            targets = request.prompt_ids[start:end]
            k = request.params.prompt_logprobs or 0
            scores = prompt_logprobs(logits[first : first + count], targets, k)
            if request.num_scored == 0:
                targets, scores = [request.prompt_ids[0], *targets], [(), *scores]
            if not targets:
                continue  # a preempted prompt is computed again
            request.num_scored = end
            piece = Generated(PROMPT, tuple(targets), "", tuple(scores))
            pieces.append((request.request_id, piece))
        return pieces

    def sample(self, logits: Logits) -> list[Sampled]:
        """The tokens, in the order of the rows; `counts` of them for each row of the step."""
        if not self._sampled:
            return []
        if self._places != list(range(len(logits))):
            logits = logits[self._places]
        sampled = sample(logits, self._sampled)
        if any(one.error for one in self.constrained):
            self._fail(sampled)
        return sampled

    def _fail(self, sampled: list[Sampled]) -> None:
        """Give an error to the answers whose masks could not be computed."""
        failed = {id(row): one for one in self.constrained if one.error for row in one.rows}
        for index, row in enumerate(self._sampled):
            one = failed.get(id(row))
            if one is not None:
                sampled[index] = Sampled(-1, error=one.error, blames_request=one.blames_request)
