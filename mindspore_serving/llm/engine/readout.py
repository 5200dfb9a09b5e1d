"""The use of a step's logits: rows sampled for branches, log-probabilities of prompts."""

from dataclasses import dataclass, field

from mindspore_serving.core.generation import Generated
from mindspore_serving.llm.engine.branch import Branch
from mindspore_serving.llm.grammar.state import Constrained
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import Sampled, prompt_logprobs, sample
from mindspore_serving.llm.step import Logits, Row

PROMPT = -1  # the `Generated.index` of a piece of the prompt itself


@dataclass(slots=True)
class Readout:
    """Filled row by row in the order of the step, then used once."""

    counts: list[int] = field(default_factory=list)  # of each row of the step: tokens sampled
    constrained: list[Constrained] = field(default_factory=list)  # rows whose masks are missing
    _sampled: list[SampleRow] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)  # the logits of each of those
    _scored: list[tuple[Branch, int, int]] = field(
        default_factory=list
    )  # logits from, and how many
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
            self.constrained.append(Constrained(branch.grammar, rows, guesses))

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
        errors = {id(row): one.error for one in self.constrained if one.error for row in one.rows}
        for index, row in enumerate(self._sampled):
            if id(row) in errors:
                sampled[index] = Sampled(-1, error=errors[id(row)])
