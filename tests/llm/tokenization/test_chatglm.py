"""ChatGLM's tokenizers are made of tokenizer.model alone, and their chats have the published form.

What SentencePiece makes of the texts is in `sentencepiece/expected.json` (`test_sentencepiece`);
files of ranks are compared with tiktoken.
"""

import json
import shutil
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.checkpoint.chatglm import SPECIAL
from mindspore_serving.llm.checkpoint.gguf.pre_tokenizers import PATTERNS
from mindspore_serving.llm.checkpoint.ranks import SPELLING
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.gguf_files import write_tokenizer
from tests.llm.tokenization import test_gguf_tokenizer as gguf_tokenizers
from tests.llm.tokenization.test_gguf_rules import byte_level
from tests.llm.tokenization.test_sentencepiece import EXPECTED, MODELS
from tests.llm.tokenizers_trained import TEXTS

THIRD = 'role_special_tokens = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]'
SECOND = 'prompt += "[Round {}]\\n\\n问：{}\\n\\n答：{}\\n\\n".format(i + 1, old_query, response)'
NEWLINE = [495, 15]  # what SentencePiece makes of "\n"
COUNT = 560  # pieces of bpe.model
GMASK, SOP, USER, ASSISTANT, OBSERVATION = (
    COUNT + SPECIAL.index(token)
    for token in ("[gMASK]", "sop", "<|user|>", "<|assistant|>", "<|observation|>")
)
LATER = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", *SPECIAL[-4:]]
LANGUAGES = [
    *TEXTS[:6], *gguf_tokenizers.OTHERS, "こんにちは世界", "Привет, мир!", "Ελληνικά",
    "12345678 90", "1. 列表\n2. 列表\n\n\n结束", "   ", "\n", "ab\u0300c \u200b", "𠮷野家で𩸽",
]  # fmt: skip


def directory(path: Path, code: str = THIRD, model: str = "bpe", **config: Any) -> Path:
    shutil.copyfile(MODELS / f"{model}.model", path / "tokenizer.model")
    options = {"tokenizer_class": "ChatGLMTokenizer", **config}
    (path / "tokenizer_config.json").write_text(json.dumps(options))
    (path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    if code:
        (path / "tokenization_chatglm.py").write_text(code)
    return path


@cache
def ranks() -> dict[bytes, int]:
    """Of a tokenizer that is trained here."""
    rule = pre_tokenizers.Split(Regex(PATTERNS["chatglm-bpe"][0]), "isolated")
    trained = byte_level([rule])
    bytes_of = {char: byte for byte, char in SPELLING.items()}
    tokens = [token for token in gguf_tokenizers.by_id(trained) if token not in ("<s>", "</s>")]
    return {bytes(bytes_of[char] for char in token): rank for rank, token in enumerate(tokens)}


def rank_directory(path: Path, lines: dict[bytes, int], first: int | None = None) -> Path:
    """With the special tokens of GLM-4 from the id `first`."""
    content = [f"{b64encode(token).decode()} {rank}" for token, rank in lines.items()]
    (path / "tokenizer.model").write_text("\n".join(content) + "\n")
    begin = len(lines) if first is None else first
    added = {str(begin + i): {"content": token, "special": True} for i, token in enumerate(LATER)}
    options = {"tokenizer_class": "ChatGLM4Tokenizer", "added_tokens_decoder": added}
    (path / "tokenizer_config.json").write_text(json.dumps(options))
    return path


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_special_tokens_follow_the_pieces_and_begin_a_text(model: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(directory(tmp_path, model=model))
    count = tokenizer.vocab_size - len(SPECIAL)
    assert [tokenizer.token_id(token) for token in SPECIAL] == list(range(count, count + 9))
    for text, ids in EXPECTED[model]:
        if "<|im_start|>" in text:  # a symbol of the file, behind which is no space
            continue
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.encode(text) == [count + 1, count + 3, *ids], text
        assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.decode(ids)


def test_a_chat_with_the_third_has_a_token_for_each_role(tmp_path: Path) -> None:
    """Each part of a message is cut by itself, with a space before it."""
    tokenizer = Tokenizer.open(directory(tmp_path))
    template = ChatTemplate.open(tmp_path)
    assert template is not None
    (question, asked), (answer, answered) = EXPECTED["bpe"][:2]
    text = template.render(
        [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
            {"role": "tool", "content": question},
        ]
    )
    assert tokenizer.encode(text, add_special=False) == [
        GMASK, SOP, USER, *NEWLINE, *asked, ASSISTANT, *NEWLINE, *answered,
        OBSERVATION, *NEWLINE, *asked, ASSISTANT,
    ]  # fmt: skip
    with pytest.raises(InvalidInputs, match='role is "narrator", expected one of system'):
        template.render([{"role": "narrator", "content": "x"}])


def test_a_chat_with_the_second_has_rounds(tmp_path: Path) -> None:
    template = ChatTemplate.open(directory(tmp_path, SECOND))
    assert template is not None
    messages = [
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": "您好"},
        {"role": "user", "content": "谁？"},
    ]
    rounds = "[Round 1]\n\n问：你好\n\n答：您好\n\n[Round 2]\n\n问：谁？\n\n答："
    text = template.render(messages)
    assert text == f"[gMASK]sop{rounds}"
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.encode(text, add_special=False) == tokenizer.encode(rounds)
    assert not template.shows_system
    with pytest.raises(InvalidInputs, match="the role system is none of user, assistant"):
        template.render([{"role": "system", "content": "x"}, *messages])


def test_a_chat_with_the_fourth_has_no_space(tmp_path: Path) -> None:
    template = ChatTemplate.open(rank_directory(tmp_path, ranks()))
    assert template is not None
    text = template.render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    assert text == "[gMASK]<sop><|system|>\na<|user|>\nb<|assistant|>"


def test_a_template_of_the_checkpoint_comes_first(tmp_path: Path) -> None:
    template = ChatTemplate.open(directory(tmp_path, chat_template="{{ messages[0].content }}"))
    assert template is not None
    assert template.render([{"role": "user", "content": "a"}]) == "a"


@pytest.mark.parametrize("code", ["", "class CodeTokenizer:"])
def test_without_a_sign_of_its_form_there_is_no_template(code: str, tmp_path: Path) -> None:
    assert ChatTemplate.open(directory(tmp_path, code)) is None


def test_an_answer_ends_where_another_turn_begins(tmp_path: Path) -> None:
    assert Tokenizer.open(directory(tmp_path)).eos_ids == (2, USER, OBSERVATION)


def test_config_json_tells_where_no_class_is_named(tmp_path: Path) -> None:
    path = directory(tmp_path, tokenizer_class=None)
    assert Tokenizer.open(path).token_id("[gMASK]") is None
    (path / "config.json").write_text('{"model_type": "chatglm"}')
    assert Tokenizer.open(path).token_id("[gMASK]") == GMASK
    assert ChatTemplate.open(path) is not None


def test_sop_inside_a_word_is_no_special_token(tmp_path: Path) -> None:
    """Also where the checkpoint says that it is found anywhere."""
    sop = {"content": "sop", "special": True, "single_word": False}
    path = directory(tmp_path, added_tokens_decoder={str(SOP): sop})
    tokenizer = Tokenizer.open(path)
    assert max(tokenizer.encode("Aesop was a sophist; people", add_special=False)) < COUNT
    assert tokenizer.encode("[gMASK]sop<|user|>", add_special=False) == [GMASK, SOP, USER]


@pytest.mark.parametrize("added", [{"3": "[gMASK]"}, {str(SOP): "<sop>"}, {str(COUNT + 30): "sop"}])
def test_special_tokens_elsewhere_are_refused(added: dict[str, str], tmp_path: Path) -> None:
    """As of a checkpoint whose code was changed when its vocabulary grew."""
    decoder = {index: {"content": token} for index, token in added.items()}
    with pytest.raises(StartError, match=r"560 tokens, and .* a tokenizer.json is needed"):
        Tokenizer.open(directory(tmp_path, added_tokens_decoder=decoder))


def test_a_file_of_ranks_cuts_texts_as_tiktoken_does(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    tokenizer = Tokenizer.open(rank_directory(tmp_path, ranks()))
    (pattern,) = PATTERNS["chatglm-bpe"]
    reference = tiktoken.Encoding(
        "reference", pat_str=pattern, mergeable_ranks=ranks(), special_tokens={}
    )
    count = len(ranks())
    begin = [count + LATER.index(token) for token in ("[gMASK]", "<sop>")]
    for text in LANGUAGES:
        ids = reference.encode_ordinary(text)
        assert tokenizer.encode(text) == [*begin, *ids], text
        assert tokenizer.decode(ids) == text
    ends = [count + LATER.index(token) for token in ("<|user|>", "<|observation|>")]
    assert tokenizer.eos_ids == tuple(ends)


@pytest.mark.parametrize(
    ("change", "first", "says"),
    [
        ({b"never": 9999}, None, "expected each rank and each token once"),
        ({b"never": 300}, None, "expected each rank and each token once"),
        ({}, 9999, "expected ChatGLM's special tokens after them"),
        ({}, 0, "expected ChatGLM's special tokens after them"),
    ],
)
def test_a_file_of_ranks_with_gaps_is_refused(
    change: dict[bytes, int], first: int | None, says: str, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match=says):
        Tokenizer.open(rank_directory(tmp_path, ranks() | change, first))


def test_an_incomplete_file_of_ranks_is_refused(tmp_path: Path) -> None:
    path = rank_directory(tmp_path, {b"a": 0})
    with pytest.raises(StartError, match="lacks the token of a byte"):
        Tokenizer.open(path)
    (path / "tokenizer.model").write_text("YQ== 0\nno\n")
    with pytest.raises(StartError, match="line 2 is no base64 token with a rank"):
        Tokenizer.open(path)
    rank_directory(tmp_path, ranks())
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "ChatGLM4Tokenizer"}')
    with pytest.raises(StartError, match="expected ChatGLM's special tokens"):
        Tokenizer.open(path)


def test_a_gguf_file_has_begin_and_end_tokens(tmp_path: Path) -> None:
    source = Tokenizer.open(directory(tmp_path))
    tokens = [source.token(index) or "" for index in range(source.vocab_size)]
    types = [3 if token in SPECIAL or index < 3 else 1 for index, token in enumerate(tokens)]
    path = write_tokenizer(
        tmp_path / "model.gguf", [*tokens, "[PAD]"], model="llama", types=[*types, 5],
        pre="chatglm-spm", scores=[float(-index) for index in range(len(tokens) + 1)],
        add_bos_token=False, eos_token_id=2,
    )  # fmt: skip
    tokenizer = Tokenizer.open(path)
    assert tokenizer.encode("philosophy")[:2] == [GMASK, SOP]
    assert SOP not in tokenizer.encode("philosophy")[2:]
    assert tokenizer.eos_ids == (2, USER, OBSERVATION)


def test_a_gguf_file_of_ranks_has_them_too(tmp_path: Path) -> None:
    rule = pre_tokenizers.Split(Regex(PATTERNS["chatglm-bpe"][0]), "isolated")
    source = byte_level([rule])
    tokens = gguf_tokenizers.by_id(source)
    path = write_tokenizer(
        tmp_path / "model.gguf", [*tokens, *LATER], pre="chatglm-bpe", add_bos_token=False,
        types=[1] * len(tokens) + [3] * len(LATER), merges=gguf_tokenizers.merges_of(source),
    )  # fmt: skip
    tokenizer = Tokenizer.open(path)
    begin = [len(tokens) + LATER.index(token) for token in ("[gMASK]", "<sop>")]
    assert tokenizer.encode("naïve café") == [*begin, *source.encode("naïve café").ids]
    assert tokenizer.encode(LATER[0] + LATER[7], add_special=False) == [
        len(tokens), len(tokens) + 7
    ]  # fmt: skip
    assert len(tokens) + LATER.index("<|user|>") in tokenizer.eos_ids
