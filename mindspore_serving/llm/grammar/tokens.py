"""A vocabulary in llguidance's form: the bytes of each token, and text split into tokens.

Special tokens are not text: no text, whatever it spells, becomes one of them.
"""

from collections.abc import Iterable

from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_MAX_TOKEN_BYTES = 512  # llguidance's table breaks over 1000; longer tokens are never allowed
_SENTINEL = "\x02"  # a character that no token joins with another


class TokenTable:
    """Tokens for which a model has logits.

    Args:
        tokenizer: of the model.
        vocab_size: of the logits. Tokens beyond the tokenizer's vocabulary have no bytes; tokens
            beyond the logits are left out.
        eos_ids: the end tokens. If none has a logit, one is added after the logits, where it cannot
            be sampled.
    """

    # These names are llguidance's.
    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Iterable[int]) -> None:
        num_tokens = min(vocab_size, tokenizer.vocab_size)
        self.tokens = tokenizer.all_bytes()[:num_tokens]
        self.tokens += [b""] * (vocab_size - num_tokens)
        self.eos_ids = sorted({token_id for token_id in eos_ids if 0 <= token_id < vocab_size})
        if not self.eos_ids:
            self.eos_ids = [vocab_size]
            self.tokens.append(b"")
        special = {token_id for token_id in range(num_tokens) if tokenizer.is_special(token_id)}
        special.update(self.eos_ids)
        self.special_token_ids = sorted(special)
        self.eos_token_id = self.eos_ids[0]
        for token_id, token in enumerate(self.tokens):
            if token_id in special:
                self.tokens[token_id] = token or f"<|end {token_id}|>".encode()
            elif len(token) > _MAX_TOKEN_BYTES:
                self.tokens[token_id] = b""
        self.special_ids = {
            self.tokens[token_id].decode("utf-8", "replace"): token_id for token_id in special
        }
        self._tokenizer = tokenizer
        self._ids_of: dict[bytes, int] = {}
        self._longest = 1

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of `text` inside a text: their bytes together are its bytes."""
        data = text.encode("utf-8", "replace")
        ids = self._encode(text)
        if self._spells(ids, data):
            return ids
        # The tokenizer puts a space before every text: let a sentinel take its position.
        start = self._encode(_SENTINEL)
        ids = self._encode(_SENTINEL + text)
        if ids[: len(start)] == start and self._spells(ids[len(start) :], data):
            return ids[len(start) :]
        return self._split(data)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)

    def _spells(self, ids: list[int], data: bytes) -> bool:
        """Return whether `ids` spell `data` in tokens that are text and have logits."""
        size, special = len(self.tokens), self._tokenizer.is_special
        is_text = all(token_id < size and not special(token_id) for token_id in ids)
        return is_text and b"".join(self.tokens[token_id] for token_id in ids) == data

    def _split(self, text: bytes) -> list[int]:
        """Split `text` greedily by the longest token that fits.

        For texts that the tokenizer would change, or in which it finds special tokens.
        """
        if not self._ids_of:
            special = set(self.special_token_ids)
            texts = [item for item in enumerate(self.tokens) if item[1] and item[0] not in special]
            self._longest = max((len(token) for _, token in texts), default=1)
            self._ids_of = {token: token_id for token_id, token in reversed(texts)}
        ids: list[int] = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids_of), None)
            if end is None:
                return ids  # no token spells this byte: the answer cannot be generated
            ids.append(self._ids_of[text[start:end]])
            start = end
        return ids
