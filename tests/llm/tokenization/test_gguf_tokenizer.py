"""Tokenizers in GGUF files cut text as those do that the files are made of."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mindspore_serving.errors import StartError
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.checkpoint.gguf import files
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf, read_file
from mindspore_serving.llm.checkpoint.model_files import read_eos_ids, read_recommended
from mindspore_serving.llm.tokenization import tokenizer as serving
from tests.llm.gguf_files import write_model, write_tokenizer
from tests.llm.tokenizers_trained import BYTES, TEXTS, llama

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
OTHERS = [
    "123456 apples, 7½ pears",
    "naïve café – «größe»",
    "def f(x):\n    return x\n",
    "한국어 텍스트",
]
OTHERS += ["WE'LL see, they're I'VE", "ไทย हिन्दी العربية", "a\r\nb\n\n\nc", "¿Qué?!...", "\u0301e"]


def opened(path: Path) -> serving.Tokenizer:
    return serving.Tokenizer.open(path)


def by_id(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]


def merges_of(tokenizer: Tokenizer) -> list[str]:
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def assert_same(path: Path, source: Tokenizer, texts: Sequence[str]) -> None:
    found = opened(path)
    for text in texts:
        expected = source.encode(text, add_special_tokens=False).ids
        assert found.encode(text, add_special=False) == expected, text
        assert found.decode(expected) == source.decode(expected), text


def test_sentence_pieces_are_merged_by_their_scores(tmp_path: Path) -> None:
    source = llama()
    tokens = by_id(source)
    merged = {"".join(pair.split(" ")): -float(i) for i, pair in enumerate(merges_of(source))}
    types = [BYTE if token.startswith("<0x") else NORMAL for token in tokens]
    for index, token in enumerate(tokens):
        if token in ("<unk>", "<s>", "</s>", "<|im_end|>"):
            types[index] = UNKNOWN if token == "<unk>" else CONTROL
    path = write_tokenizer(
        tmp_path / "t.gguf",
        tokens,
        model="llama",
        types=types,
        scores=[merged.get(token, -1e6) for token in tokens],
        unknown_token_id=tokens.index("<unk>"),
        bos_token_id=tokens.index("<s>"),
    )
    assert_same(path, source, [*TEXTS, *OTHERS])
    found = opened(path)
    assert found.encode("a")[0] == tokens.index("<s>"), "SentencePiece's texts begin with <s>"


def test_pieces_of_gemma_4_are_merged_as_the_file_says(tmp_path: Path) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    source = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    source.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(special_tokens=[*special, *BYTES], show_progress=False)
    source.pre_tokenizer = pre_tokenizers.Split("\n", "contiguous")  # no token has both
    source.train_from_iterator([*TEXTS, *OTHERS], trainer)
    source.pre_tokenizer = pre_tokenizers.Sequence([])
    source.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokens = by_id(source)
    types = [CONTROL] * 3 + [UNKNOWN] + [BYTE] * 256
    path = write_tokenizer(
        tmp_path / "t.gguf",
        tokens,
        model="gemma4",
        types=[*types, *[NORMAL] * (len(tokens) - len(types))],
        scores=[-1000.0] * len(tokens),
        merges=merges_of(source),
        unknown_token_id=3,
        bos_token_id=2,
        add_space_prefix=False,
        add_bos_token=True,
    )
    assert_same(path, source, [*TEXTS, *OTHERS, "new words\n\n\n  of it"])
    assert opened(path).encode("☃") == [2, *source.encode("☃").ids], "bytes, behind <bos>"


def test_unigram_pieces_are_chosen_by_their_scores(tmp_path: Path) -> None:
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("▁t", -2.0), ("he", -2.5), ("▁", -3.0), ("t", -4.0)]
    pieces += [(letter, -6.0) for letter in "abcdefghijklmnopqrsuvwxyz"]
    path = write_tokenizer(
        tmp_path / "t.gguf",
        [piece for piece, _ in pieces],
        model="t5",
        types=[UNKNOWN] + [NORMAL] * (len(pieces) - 1),
        scores=[score for _, score in pieces],
        unknown_token_id=0,
    )
    found = opened(path)
    words = [found.token(i) for i in found.encode("the thet", add_special=False)]
    assert words == ["▁the", "▁the", "t"]
    assert found.decode(found.encode("the thet")) == "the thet"


def test_word_pieces_are_marked_where_the_library_marks_them(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "##es", "jump", "##ing", ","]
    source = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    source.normalizer = normalizers.BertNormalizer(lowercase=True)
    source.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    source.decoder = decoders.WordPiece("##")
    tokens = [
        word if word[0] == "[" else word[2:] if word[:2] == "##" else f"▁{word}" for word in words
    ]
    path = write_tokenizer(
        tmp_path / "t.gguf",
        tokens,
        model="bert",
        types=[CONTROL, UNKNOWN, CONTROL, CONTROL] + [NORMAL] * 6,
        unknown_token_id=1,
        cls_token_id=2,
        seperator_token_id=3,
    )
    assert_same(path, source, ["The foxes, jumping", "the fox"])
    assert opened(path).encode("the fox") == [2, 4, 5, 3]


SIMPLE = ["<s>", "</s>", "<|im_end|>", "a", "b", "ab", "<unused>"]
SIMPLE_TYPES = [CONTROL] * 3 + [NORMAL] * 3 + [USER]


def simple(path: Path, **values: Any) -> Path:
    given = {"bos_token_id": 0, "eos_token_id": 1, "pre": "gpt-2", **values}
    return write_tokenizer(path, SIMPLE, types=SIMPLE_TYPES, merges=["a b"], **given)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [5]),
        ({"add_bos_token": True}, [0, 5]),
        ({"add_bos_token": True, "add_eos_token": True}, [0, 5, 1]),
        ({"pre": "llama-bpe"}, [0, 5]),
        ({"pre": "llama-bpe", "add_bos_token": False}, [5]),
    ],
)
def test_a_text_gets_the_special_tokens_that_the_file_says(
    values: dict[str, Any], expected: list[int], tmp_path: Path
) -> None:
    assert opened(simple(tmp_path / "t.gguf", **values)).encode("ab") == expected


def test_special_tokens_are_found_in_a_text_and_left_out_of_an_answer(tmp_path: Path) -> None:
    found = opened(simple(tmp_path / "t.gguf"))
    assert found.encode("<s>ab<|im_end|><unused>") == [0, 5, 2, 6]
    assert found.decode([0, 5, 2, 6]) == "ab<unused>"
    assert found.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_an_answer_ends_at_every_end_that_is_known(tmp_path: Path) -> None:
    assert read_eos_ids(simple(tmp_path / "t.gguf")) == (1, 2)


def test_sampling_that_the_file_recommends_is_read(tmp_path: Path) -> None:
    extra = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.949999988079071,  # 0.95 as float32
        "general.sampling.penalty_repeat": 1.1,
    }
    path = write_model(tmp_path / "model.gguf", extra=extra)
    assert read_recommended(path) == {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
    }


def test_the_chat_templates_for_chats_and_tools_are_read(tmp_path: Path) -> None:
    extra = {
        "tokenizer.chat_template": "plain {{ messages[0].content }}{{ eos_token }}",
        "tokenizer.chat_template.tool_use": "tools {{ messages[0].content }}",
    }
    path = write_model(tmp_path / "model.gguf", extra=extra)
    template = ChatTemplate.open(path, {"eos_token": "</s>"})
    assert template is not None
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages) == "plain hi</s>"
    assert template.render(messages, tools=[{"type": "function"}]) == "tools hi"


def test_a_file_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.open(write_model(tmp_path / "model.gguf")) is None


def test_an_unknown_rule_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="rule 'llama4-bpe'.*did you mean llama-bpe"):
        opened(simple(tmp_path / "t.gguf", pre="llama4-bpe"))


def test_an_unknown_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", SIMPLE, model="rwkv")
    with pytest.raises(
        StartError, match="kind 'rwkv', expected one of gpt2, llama, gemma4, t5, bert"
    ):
        opened(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scores": [1.0], "model": "llama"}, "1 tokenizer.ggml.scores, expected 7"),
        ({"model": "llama"}, "no tokenizer.ggml.scores"),
        ({"merges": ["a b c"], "pre": "gpt-2"}, "merge"),
        ({"pre": "gpt-2"}, "tokenizer.ggml.merges None, expected an array"),
        ({"merges": [1, 2], "pre": "gpt-2"}, "merges of type 5, expected texts"),
        ({"merges": ["a b"], "pre": "gpt-2", "eos_token_id": 99}, "eos_token_id 99"),
    ],
)
def test_a_broken_tokenizer_is_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", SIMPLE, **values)
    with pytest.raises(StartError, match=message):
        opened(path)


def test_a_directory_with_a_single_gguf_file_means_that_file(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf")
    assert find_gguf(tmp_path) == path
    assert find_gguf(path) == path
    write_model(tmp_path / "other.gguf")
    with pytest.raises(StartError, match=r"model.gguf, other.gguf\): give the path"):
        find_gguf(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert find_gguf(tmp_path) is None, "its other files say which weights are meant"


def test_an_answer_of_gpt_oss_does_not_end_with_its_first_message(tmp_path: Path) -> None:
    """What it thinks is a message as well."""
    tokens = ["<|end|>", "<|return|>", "<|call|>", "<|start|>"]
    ends = {"eos_token_id": 1, "eot_token_id": 0}
    path = write_tokenizer(tmp_path / "t.gguf", tokens, types=[CONTROL] * 4, **ends)
    assert read_file(path / "generation_config.json")["eos_token_id"] == [1, 2]


def test_a_kept_tokenizer_is_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINDSPORE_SERVING_CACHE", str(tmp_path / "cache"))
    tokens = ["a", "b", "c", "ab", "bc", "<s>", "</s>"]
    types = [NORMAL] * 5 + [CONTROL] * 2
    values = {"model": "gpt2", "types": types, "eos_token_id": 6}
    paths = [
        write_tokenizer(tmp_path / f"{number}.gguf", tokens, merges=merges, **values)
        for number, merges in enumerate((["a b", "b c"], ["b c", "a b"]))
    ]
    first, second = ([opened(path) for path in paths] for _ in range(2))
    for built, kept in zip(first, second, strict=True):
        for text in ("abc", "cab", "bcab<s>a</s>"):
            assert built.encode(text) == kept.encode(text)
        assert (built.eos_ids, built.special_tokens) == (kept.eos_ids, kept.special_tokens)
        expected = [token.encode() for token in tokens]
        assert built.all_bytes() == kept.all_bytes() == expected
        assert built.vocab_size == kept.vocab_size == 1 + max(kept.vocabulary().values())
    assert second[0].encode("abc") != second[1].encode("abc"), "other merges are another file"
    assert len(capsys.readouterr().err.splitlines()) == 4, "a missing rule is logged at every start"


def test_a_kept_tokenizer_of_other_code_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINDSPORE_SERVING_CACHE", str(tmp_path / "cache"))
    values = {"model": "gpt2", "pre": "gpt-2", "merges": ["a b"]}
    path = write_tokenizer(tmp_path / "t.gguf", ["a", "b"], **values)
    read_file(path / "tokenizer.json")
    monkeypatch.setitem(files.BUILT, "tokenizer.json", lambda _: {"changed": True})
    assert "changed" not in read_file(path / "tokenizer.json")
    monkeypatch.setattr(files, "source_digest", lambda _: b"changed")
    assert read_file(path / "tokenizer.json") == {"changed": True}


def test_merges_that_the_library_would_skip_are_pairs(tmp_path: Path) -> None:
    tokens = ["#version", "a", "#versiona"]
    for values in ({"merges": ["#version a"]}, {"scores": [0.0, -1.0, -2.0]}):
        path = write_tokenizer(tmp_path / "t.gguf", tokens, model="gpt2", pre="gpt-2", **values)
        merges = read_file(path / "tokenizer.json")["model"]["merges"]
        assert merges == [["#version", "a"]]
