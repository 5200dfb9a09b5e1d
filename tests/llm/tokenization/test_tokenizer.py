"""Opening a model directory's tokenizer, and what it knows."""

import json
import threading
import time

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.tokenizers_trained import opened, trained


@pytest.fixture
def directory(tmp_path):
    trained("llama").save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(directory, name, found):
    (directory / name).write_text(json.dumps(found))


def test_text_becomes_ids_and_comes_back(directory):
    tokenizer = Tokenizer.open(directory)
    ids = tokenizer.encode("The quick brown fox")
    assert ids == trained("llama").encode("The quick brown fox").ids
    assert tokenizer.decode(ids) == "The quick brown fox"
    assert tokenizer.vocab_size == trained("llama").get_vocab_size()


def test_special_tokens_are_added_where_the_model_wants_them_or_not(directory):
    from tokenizers.processors import TemplateProcessing

    inner = trained("llama")
    with_start = type(inner).from_str(inner.to_str())
    start = inner.token_to_id("<s>")
    with_start.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    tokenizer = Tokenizer(with_start)
    assert tokenizer.encode("fox") == [start, *tokenizer.encode("fox", add_special=False)]


def test_truncation_and_padding_of_the_file_are_turned_off():
    inner = trained("llama")
    narrow = type(inner).from_str(inner.to_str())
    narrow.enable_truncation(2)
    narrow.enable_padding(length=8)
    assert Tokenizer(narrow).encode("The quick fox") == inner.encode("The quick fox").ids


def test_end_tokens_come_from_tokenizer_and_generation_config(directory):
    end, im_end = (trained("llama").token_to_id(token) for token in ("</s>", "<|im_end|>"))
    assert Tokenizer.open(directory).eos_ids == ()
    write(directory, "config.json", {"eos_token_id": end})
    assert Tokenizer.open(directory).eos_ids == (end,)
    write(directory, "generation_config.json", {"eos_token_id": [end, 77]})
    write(directory, "tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}})
    assert Tokenizer.open(directory).eos_ids == (im_end, end, 77)


def test_special_tokens_have_the_names_that_templates_use(directory):
    write(directory, "special_tokens_map.json", {"bos_token": "<x>", "pad_token": "<p>"})
    write(directory, "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": None})
    assert Tokenizer.open(directory).special_tokens == {"bos_token": "<s>", "pad_token": "<p>"}


@pytest.mark.parametrize(
    ("kind", "token", "text", "spelled"),
    [
        ("llama", "▁", " ", b" "),
        ("llama", "<0xE2>", "\ufffd", b"\xe2"),
        ("llama", "<s>", "<s>", b"<s>"),
        ("byte_level", "Ġ", " ", b" "),
        ("byte_level", "Ã", "\ufffd", b"\xc3"),
        ("byte_level", "<tool 你>", "<tool 你>", "<tool 你>".encode()),
        ("metaspace", "▁", " ", b" "),
    ],
)
def test_a_token_has_a_text_and_bytes_of_its_own(kind, token, text, spelled):
    tokenizer = opened(kind)
    token_id = trained(kind).token_to_id(token)
    assert tokenizer.token(token_id) == token
    assert tokenizer.token_text(token_id) == text
    assert tokenizer.token_bytes(token_id) == spelled


def test_the_bytes_of_a_texts_tokens_are_the_texts():
    for kind in ("byte_level", "gemma"):
        tokenizer = opened(kind)
        text = "Żółta 世界 👍🏽 \n\t x"
        ids = tokenizer.encode(text)
        assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()


def test_a_token_that_does_not_exist_is_empty(directory):
    tokenizer = Tokenizer.open(directory)
    assert (tokenizer.token(10**6), tokenizer.token_text(10**6)) == (None, "")
    assert tokenizer.token_bytes(10**6) == b""


def test_bad_words_are_encoded_at_the_start_of_a_text_and_after_a_space():
    tokenizer = opened("byte_level")
    found = tokenizer.encode_words(["fox", "the"])
    assert [tokenizer.decode(ids) for ids in found] == ["fox", " fox", "the", " the"]


def test_a_missing_tokenizer_is_refused_with_advice(tmp_path):
    with pytest.raises(StartError, match=r"tokenizer\.json does not exist; .*save_pretrained"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not JSON"),
        ("config.json", "[]", "config.json holds a list, expected an object"),
        ("config.json", '{"eos_token_id": "x"}', "eos_token_id is ['x'], expected an int or"),
        ("config.json", b"\xff", "config.json cannot be read"),
    ],
)
def test_a_broken_file_is_named(directory, name, content, text):
    content = content if isinstance(content, bytes) else content.encode()
    (directory / name).write_bytes(content)
    with pytest.raises(StartError) as caught:
        Tokenizer.open(directory)
    assert text in str(caught.value)


def test_other_threads_run_while_a_long_text_is_cut(directory):
    """The step loop is one of them: a book in a prompt must not stop all answers."""
    tokenizer = Tokenizer.open(directory)
    text = "The quick brown fox jumps over the lazy dog. " * 20_000
    is_done, ticks = threading.Event(), []

    def tick():
        while not is_done.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()

    def ran_meanwhile(cut):
        began = time.perf_counter()
        cut(text)
        ended = time.perf_counter()
        return any(began + 0.1 * (ended - began) < at < ended for at in ticks)

    try:
        for cut in (tokenizer.encode, tokenizer.encode_with_offsets):
            # A busy machine may not come to the other thread each time.
            assert any(ran_meanwhile(cut) for _ in range(20)), "nothing else ran"
    finally:
        is_done.set()
        thread.join()
