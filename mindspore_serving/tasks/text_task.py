"""Tasks of texts: instances to batches of tokens, and logits to answers.

A failing instance fails alone.  Texts of like length are computed together, in batches of so many
texts and tokens at most; what else is in a batch changes no answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.core.tasks import TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.encoder import count_fitting
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput, Tokenizer
from mindspore_serving.tasks.answering import Ask, Question
from mindspore_serving.tasks.options import named, read_flag, read_text
from mindspore_serving.tasks.text_model import TextModel

Outcome: TypeAlias = "tuple[Value, ...] | ServingError"

MAX_BATCH = 32  # texts that a stage has at once: requests that come meanwhile wait for all of them
PER_TOKEN = 64  # characters: no token is longer, so a longer text cannot fit
PER_TOKEN_CUT = 256  # of a text that is to be cut: what is behind is not looked at


class TextTask:
    """A model of texts with its tokenizer, and `ask`, what its task is.  Used by one thread."""

    def __init__(
        self,
        task: str,
        model: TextModel,
        tokenizer: Tokenizer,
        ask: Ask,
        *,
        options: TaskOptions,
        config: EngineConfig,
    ) -> None:
        self._task = task
        self._model = model
        self._tokenizer = tokenizer
        self._ask = ask
        self._options, self._config = options, config
        self.batch_size = min(config.max_num_seqs, MAX_BATCH)

    def run(self, rows: Sequence[Sequence[Value]]) -> list[Outcome]:
        """One outcome for each row of inputs, in order."""
        outcomes: list[Outcome] = [StageFailed("not answered")] * len(rows)
        questions: dict[int, Question] = {}
        for place, row in enumerate(rows):
            try:
                questions[place] = self._read(row)
            except InvalidInputs as error:
                outcomes[place] = error
        order = sorted(questions, key=lambda place: -len(questions[place].tokens.ids))
        while order:
            lengths = [len(questions[place].tokens.ids) for place in order]
            count = count_fitting(lengths, self._config)
            batch, order = order[:count], order[count:]
            answers = self._answer([questions[place] for place in batch])
            for place, answer in zip(batch, answers, strict=True):
                outcomes[place] = answer
        return outcomes

    def close(self) -> None:
        self._model.close()

    def _answer(self, batch: Sequence[Question]) -> Sequence[Outcome]:
        try:
            tokens = [question.tokens for question in batch]
            found = self._model.run(tokens, [question.places for question in batch])
        except ServingError as error:
            log.error("a batch of %d texts failed: %s", len(batch), error)
            return [StageFailed(str(error))] * len(batch)
        return [question.answer(rows) for question, rows in zip(batch, found, strict=True)]

    def _read(self, row: Sequence[Value]) -> Question:
        given = named(self._task, row)
        text = read_text(given, "text")
        pair = read_text(given, "text_pair") if "text_pair" in given else None
        truncates = read_flag(given, "truncate", self._options.truncate)
        return self._ask(text, self._tokenize(text, pair, truncates), given)

    def _tokenize(self, text: str, pair: str | None, truncates: bool) -> TokenizedInput:
        longest = self._model.max_length
        most = (PER_TOKEN_CUT if truncates else PER_TOKEN) * longest
        given = len(text) + len(pair or "")
        is_cut = truncates and pair is None and given > most
        if is_cut:
            text = text[:most]  # far behind the last token that is left
        elif given > most:
            raise _too_long(given, "characters", longest, truncates=truncates)
        try:
            tokens = self._tokenizer.encode_whole(text, pair, longest if truncates else None)
        except Exception as error:  # the library raises plain Exception
            raise InvalidInputs(f"the text cannot be cut into tokens: {error}") from error
        if is_cut and len(tokens.ids) < longest:
            raise _too_long(given, "characters", longest, truncates=truncates)
        if len(tokens.ids) > longest:
            raise _too_long(len(tokens.ids), "tokens", longest, truncates=truncates)
        self._check_tokens(tokens)
        last = self._model.num_types - 1  # families without types have pairs all the same
        return replace(tokens, types=[min(kind, last) for kind in tokens.types])

    def _check_tokens(self, tokens: TokenizedInput) -> None:
        most = self._model.vocab_size
        if not tokens.ids:
            raise InvalidInputs("the text has no tokens")
        if max(tokens.ids) >= most:
            text = (
                f"the text has token {max(tokens.ids)} of tokenizer.json, but the model has {most}"
            )
            raise InvalidInputs(text)


def _too_long(count: int, what: str, longest: int, *, truncates: bool) -> InvalidInputs:
    if truncates:
        return InvalidInputs(
            f"the text has {count:,} {what}, expected at most {PER_TOKEN_CUT * longest:,}"
        )
    text = f"the text has {count:,} {what}, the model takes {longest:,} tokens"
    return InvalidInputs(f"{text}; set truncate to true to have it cut")
