"""Text piece by piece: together it is what the tokenizers library decodes at once."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models

from mindspore_serving.errors import StartError
from mindspore_serving.llm.tokenization.stopping import Detokenizer
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.tokenizers_trained import KINDS, opened, trained


def pieces(tokenizer, ids, **options):
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.append(token_id) for token_id in ids), detokenizer.flush()]


def of_tokens(kind, *tokens, **options):
    return pieces(opened(kind), [trained(kind).token_to_id(token) for token in tokens], **options)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(st.lists(st.integers(0, 460), max_size=25), st.booleans())
def test_any_tokens_are_decoded_as_by_the_library(kind, ids, skips):
    inner = trained(kind)
    found = "".join(pieces(opened(kind), ids, skip_special_tokens=skips))
    assert found == inner.decode(ids, skip_special_tokens=skips)


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma", "unigram"])
@settings(max_examples=100)
@given(st.text(max_size=30))
def test_any_text_comes_back_without_half_characters(kind, text):
    inner = trained(kind)
    ids = inner.encode(text).ids
    found = pieces(opened(kind), ids, skip_special_tokens=False)
    assert "".join(found) == inner.decode(ids, skip_special_tokens=False)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in found)


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from([0x41, 0x80, 0xBF, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0x9F, 0xF5, 0xFF]))
)
def test_any_bytes_are_decoded_as_by_the_library(values):
    for kind in ("llama", "byte_level"):
        inner = trained(kind)
        ids = byte_ids(inner, kind, values)
        assert "".join(pieces(opened(kind), ids)) == inner.decode(ids)


def byte_ids(inner, kind, values):
    if kind == "llama":
        return [inner.token_to_id(f"<0x{value:02X}>") for value in values]
    return [spelled(kind)[bytes([value])] for value in values]


@cache
def spelled(kind):
    return {opened(kind).token_bytes(token_id): token_id for token_id in range(300)}


def test_bytes_of_an_incomplete_character_are_held_back():
    inner = trained("byte_level")
    ids = byte_ids(inner, "byte_level", "a😀b".encode())
    assert pieces(opened("byte_level"), ids) == ["a", "", "", "", "😀", "b", ""]


def test_bytes_that_never_become_a_character_show_at_the_end():
    inner = trained("byte_level")
    ids = byte_ids(inner, "byte_level", b"a\xf0\x9f")
    assert pieces(opened("byte_level"), ids) == ["a", "", "", "\ufffd"]


def test_bytes_that_cannot_become_a_character_show_at_once():
    inner = trained("byte_level")
    ids = byte_ids(inner, "byte_level", b"\xe2\x82a\xff")
    assert pieces(opened("byte_level"), ids) == ["", "", "\ufffda", "\ufffd", ""]


def test_a_run_of_byte_tokens_is_held_until_another_token():
    found = of_tokens("llama", "<0xE2>", "<0x82>", "<0xAC>", "<0xC3>", "<0xA9>", "e")
    assert found == ["", "", "", "", "", "€ée", ""]
    assert of_tokens("llama", "<0xE2>", "<0x82>", "e") == ["", "", "\ufffd\ufffde", ""]
    assert of_tokens("llama", "<0xE2>", "<0x82>") == ["", "", "\ufffd\ufffd"]


def test_only_the_first_space_of_a_text_is_dropped():
    assert of_tokens("llama", "▁", "▁", "e", "▁") == ["", " ", "e", " ", ""]
    assert of_tokens("gemma", "▁", "e") == [" ", "e", ""]


def test_special_tokens_are_skipped_and_do_not_count_as_first():
    assert of_tokens("llama", "<s>", "▁", "e", "</s>") == ["", "", "e", "", ""]
    kept = of_tokens("llama", "<s>", "▁", "e", skip_special_tokens=False)
    assert kept == ["<s>", " ", "e", ""]


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
def test_a_text_that_continues_another_keeps_its_first_space(kind):
    assert of_tokens(kind, "▁", "e", continues=True) == [" ", "e", ""]


def test_a_word_piece_that_continues_a_text_is_a_word_of_its_own():
    assert of_tokens("word_piece", "T", "##h", continues=True) == [" T", "h", ""]


def test_added_tokens_are_their_own_text_among_byte_level_tokens():
    assert of_tokens("byte_level", "a", "<tool 你>", "b") == ["a", "<tool 你>", "b", ""]


def test_an_id_that_is_no_token_adds_nothing():
    assert pieces(opened("llama"), [10**6]) == ["", ""]


@pytest.mark.parametrize(
    ("decoder", "text"),
    [
        (decoders.CTC(), "decoder CTC is not supported, only BPEDecoder"),
        (
            decoders.Sequence([decoders.Fuse(), decoders.Metaspace()]),
            "decoder Metaspace after the tokens are joined is not supported",
        ),
        (
            decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
            "decoder Strip has stop=1 after the tokens are joined, only 0 is supported",
        ),
        (
            decoders.Sequence([decoders.ByteLevel(), decoders.Replace("ab", "c")]),
            "decoder Replace of 'ab' after the tokens are joined is not supported",
        ),
    ],
)
def test_a_decoder_that_is_not_known_is_refused(decoder, text):
    inner = Inner(models.BPE())
    inner.decoder = decoder
    with pytest.raises(StartError, match=r"^tokenizer\.json: ") as caught:
        Tokenizer(inner)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "chain",
    [
        [decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)],
        [decoders.Replace("▁", " "), decoders.Strip(" ", 0, 1)],
        [decoders.Fuse(), decoders.Strip("▁", 2, 0), decoders.Replace("▁", "_")],
    ],
)
@settings(max_examples=50)
@given(st.lists(st.integers(0, 300), max_size=12))
def test_chains_with_strip_and_replace_are_the_librarys(chain, ids):
    inner = Inner.from_str(trained("metaspace").to_str())
    inner.decoder = decoders.Sequence(chain)
    assert "".join(pieces(Tokenizer(inner), ids)) == inner.decode(ids)


@settings(max_examples=100)
@given(st.text(max_size=30))
def test_the_decoder_of_a_gguf_file_converted_by_transformers_is_known(text):
    inner = Inner.from_str(trained("byte_level").to_str())
    inner.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace("\u2581", " "),
            decoders.ByteLevel(),
        ]
    )
    ids = inner.encode(text).ids
    found = "".join(pieces(Tokenizer(inner), ids, skip_special_tokens=False))
    assert found == inner.decode(ids, skip_special_tokens=False) == text
