"""Text tasks: instances to batches of tokens, and logits to outputs.

An instance that fails does not fail the others.  Texts of similar length are computed together, in
batches of limited texts and tokens; the other texts of a batch do not change a text's outputs.
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
from mindspore_serving.tasks.options import named_inputs, read_flag, read_text
from mindspore_serving.tasks.queries import Query, QueryBuilder
from mindspore_serving.tasks.text_model import TextModel

Outcome: TypeAlias = "tuple[Value, ...] | ServingError"

MAX_BATCH = 32  # texts per run of a stage: requests that arrive meanwhile wait for all of them
PER_TOKEN = 64  # characters; no token is longer, so a longer text cannot fit
PER_TOKEN_CUT = 256  # characters; a text to be truncated is not read beyond this


class TextTask:
    """Text model with its tokenizer.  Used by one thread.

    `builder` creates the queries of the task.
    """

    def __init__(
        self,
        task: str,
        model: TextModel,
        tokenizer: Tokenizer,
        builder: QueryBuilder,
        *,
        options: TaskOptions,
        config: EngineConfig,
    ) -> None:
        self._task = task
        self._model = model
        self._tokenizer = tokenizer
        self._builder = builder
        self._options, self._config = options, config
        self.batch_size = min(config.max_num_seqs, MAX_BATCH)

    def run(self, rows: Sequence[Sequence[Value]]) -> list[Outcome]:
        """Return one outcome for each row of inputs, in order."""
        outcomes: list[Outcome] = [StageFailed("not answered")] * len(rows)
        queries: dict[int, Query] = {}
        for index, row in enumerate(rows):
            try:
                queries[index] = self._read(row)
            except InvalidInputs as error:
                outcomes[index] = error
        order = sorted(queries, key=lambda index: -len(queries[index].tokens.ids))
        while order:
            lengths = [len(queries[index].tokens.ids) for index in order]
            count = count_fitting(lengths, self._config)
            batch, order = order[:count], order[count:]
            answers = self._answer([queries[index] for index in batch])
            for index, answer in zip(batch, answers, strict=True):
                outcomes[index] = answer
        return outcomes

    def close(self) -> None:
        self._model.close()

    def _answer(self, batch: Sequence[Query]) -> Sequence[Outcome]:
        try:
            tokens = [query.tokens for query in batch]
            outputs = self._model.run(tokens, [query.positions for query in batch])
        except ServingError as error:
            log.error("a batch of %d texts failed: %s", len(batch), error)
            return [StageFailed(str(error))] * len(batch)
        return [query.postprocess(rows) for query, rows in zip(batch, outputs, strict=True)]

    def _read(self, row: Sequence[Value]) -> Query:
        inputs = named_inputs(self._task, row)
        text = read_text(inputs, "text")
        pair = read_text(inputs, "text_pair") if "text_pair" in inputs else None
        truncates = read_flag(inputs, "truncate", self._options.truncate)
        return self._builder(text, self._tokenize(text, pair, truncates), inputs)

    def _tokenize(self, text: str, pair: str | None, truncates: bool) -> TokenizedInput:
        max_tokens = self._model.max_length
        max_chars = (PER_TOKEN_CUT if truncates else PER_TOKEN) * max_tokens
        num_chars = len(text) + len(pair or "")
        is_cut = truncates and pair is None and num_chars > max_chars
        if is_cut:
            text = text[:max_chars]  # far beyond the last token that is kept
        elif num_chars > max_chars:
            raise _too_long(num_chars, "characters", max_tokens, truncates=truncates)
        try:
            tokens = self._tokenizer.encode_whole(text, pair, max_tokens if truncates else None)
        except Exception as error:  # the library raises plain Exception
            raise InvalidInputs(f"the text cannot be tokenized: {error}") from error
        if is_cut and len(tokens.ids) < max_tokens:
            raise _too_long(num_chars, "characters", max_tokens, truncates=truncates)
        if len(tokens.ids) > max_tokens:
            raise _too_long(len(tokens.ids), "tokens", max_tokens, truncates=truncates)
        self._check_tokens(tokens)
        last = self._model.num_types - 1  # families without token types have pairs, too
        return replace(tokens, types=[min(kind, last) for kind in tokens.types])

    def _check_tokens(self, tokens: TokenizedInput) -> None:
        vocab_size = self._model.vocab_size
        if not tokens.ids:
            raise InvalidInputs("the text has no tokens")
        if max(tokens.ids) >= vocab_size:
            raise InvalidInputs(
                f"the text has token {max(tokens.ids)} of tokenizer.json, but the model has "
                f"{vocab_size}"
            )


def _too_long(count: int, unit: str, max_tokens: int, *, truncates: bool) -> InvalidInputs:
    if truncates:
        return InvalidInputs(
            f"the text has {count:,} {unit}, expected at most {PER_TOKEN_CUT * max_tokens:,}"
        )
    text = f"the text has {count:,} {unit}, the model takes {max_tokens:,} tokens"
    return InvalidInputs(f"{text}; set truncate to true to have it cut")
