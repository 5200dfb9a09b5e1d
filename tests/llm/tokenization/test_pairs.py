"""Texts and pairs that are cut, against the tokenizers library's own truncation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput, Tokenizer
from tests.tasks import checkpoints

WORDS = ["quick", "brown", "fox", "Paris", "wonderful,", "x", "Terrible:"]
texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


def by_the_library(inner: Any, text: str, pair: str | None, most: int, side: str) -> TokenizedInput:
    inner.enable_truncation(most, direction=side)
    try:
        found = inner.encode(text) if pair is None else inner.encode(text, pair)
    finally:
        inner.no_truncation()
    special = [bool(flag) for flag in found.special_tokens_mask]
    return TokenizedInput(found.ids, found.type_ids, found.offsets, special)


@pytest.mark.parametrize("kind", ["word_piece", "byte_level", "unigram"])
def test_the_longer_text_is_cut_as_the_library_does(kind: str) -> None:
    inner = checkpoints.make_tokenizer(kind)._tokenizer
    tokenizer = Tokenizer(inner)

    @given(texts, st.none() | texts, st.integers(5, 40), st.sampled_from(["right", "left"]))
    def check(text: str, pair: str | None, most: int, side: str) -> None:
        found = tokenizer.encode_whole(text, pair, most, side)
        assert found == by_the_library(inner, text, pair, most, side)
        assert len(found.ids) <= most

    check()
