"""Messages for front ends made of an engine's outputs: tokens with text and bytes, and chunks.

Knows no request and no thread.
"""

from collections.abc import Sequence

from mindspore_serving.core.llm_messages import Chunk, GeneratedToken
from mindspore_serving.core.sampling_params import Generated, TokenLogprob
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0  # in place of minus infinity, which JSON does not have


class OutputProcessor:
    """Converts the outputs of one model; looks up each token once."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes, bool]] = {}

    def prompt(self, ids: Sequence[int]) -> tuple[GeneratedToken, ...]:
        """Return tokens without log-probabilities."""
        return tuple(GeneratedToken(token_id, *self._spell(token_id)) for token_id in ids)

    def tokens(
        self, ids: Sequence[int], logprobs: Sequence[Sequence[TokenLogprob]] | None
    ) -> tuple[GeneratedToken, ...]:
        """Return tokens with log-probabilities, as `Generated` has them.

        The token's own entry comes first, then the likeliest; it is among `GeneratedToken.top` only
        if it is one of these.
        """
        if logprobs is None:
            return self.prompt(ids)
        return tuple(self._token(*pair) for pair in zip(ids, logprobs, strict=True))

    def chunk(self, generated: Generated, *, has_tokens: bool) -> Chunk:
        """Return a chunk with the text of `generated`."""
        reason = generated.finish_reason
        return Chunk(
            generated.index,
            generated.text,
            generated.token_ids,
            self.tokens(generated.token_ids, generated.logprobs) if has_tokens else None,
            None if reason is None else reason.value,
            generated.stop_reason,
            blames_request=generated.blames_request,
        )

    def _token(self, token_id: int, entry: Sequence[TokenLogprob]) -> GeneratedToken:
        if not entry:
            return GeneratedToken(token_id, *self._spell(token_id))
        chosen, likeliest = entry[0], entry[1:]
        top = tuple(
            GeneratedToken(row.token_id, *self._spell(row.token_id), _finite(row))
            for row in likeliest
        )
        return GeneratedToken(token_id, *self._spell(token_id), _finite(chosen), top)

    def _spell(self, token_id: int) -> tuple[str, bytes, bool]:
        spelling = self._known.get(token_id)
        if spelling is None:
            spelling = self._known[token_id] = self._look_up(token_id)
        return spelling

    def _look_up(self, token_id: int) -> tuple[str, bytes, bool]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            return "", b"", False
        data = tokenizer.token_bytes(token_id)
        return data.decode("utf-8", "replace"), data, tokenizer.is_special(token_id)


def _finite(entry: TokenLogprob) -> float:
    return max(MIN_LOGPROB, entry.logprob)
