"""Tokenizers of Marian models, without tokenizer.json.

Texts and ids are those of `transformers.MarianTokenizer` (5.23, sentencepiece 0.2.3) with these
files.
"""

import json
from base64 import b64decode

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

SOURCE = b64decode(
    "Cg0KBDwvcz4VAAAAABgDCg4KBTx1bms+FQAAAAAYAgoKCgPiloEVbUD0vwoICgFlFWu4LsAKCAoBbxVk"
    "dj/ACggKAXMVzW5YwAoICgFyFb4lWsAKCAoBeRW+JVrACggKAXUVwCVawAoICgFuFTXhYcAKCAoBJxUI"
    "em3ACggKAXQVmct6wAoICgFpFdkdg8AKCAoBaBVeOITACggKASwVpKSEwAoICgEuFaSkhMAKCAoBPxWk"
    "pITACggKAWMVpKSEwAoJCgJjaxWkpITACgsKBOKWgWYVpKSEwAoICgFkFaakhMAKCAoBbRWmpITACgwK"
    "BeKWgWl0FdzPhMAKCQoCbGEVlPCEwAoMCgXiloF0aBVcEoXACgkKAm93FR2IhcAKCQoCbG8VcKuFwAoM"
    "CgXiloF0bxXyBIbACgkKAmlzFWKChsAKCwoE4paBYRWOGorACgkKAmFuFbpAisAKCAoBYRWbd4zACgsK"
    "BOKWgW8V9diWwAoJCgJ0ZRURV5fACggKAWwV+/uawAoICgF3Fe7am8AKCAoBMRW1tZ3ACggKATIVtbWd"
    "wAoICgFEFbW1ncAKCAoBSBW1tZ3ACggKAUkVtbWdwAoICgFUFbW1ncAKCAoBYhW1tZ3ACggKAWcVtbWd"
    "wAoICgFwFbW1ncAKCAoBcRW1tZ3ACggKAXYVtbWdwAoICgF4FbW1ncAKCAoBehW1tZ3ACggKAWoVurWd"
    "wAoICgFrFQRHr8AKCAoBZhXWR6/AEiAgNMACAcgC////////////AdACANgC////////////ARoMCghp"
    "ZGVudGl0eRIA"
)
PIECES = [
    "'",
    ",",
    ".",
    "1",
    "2",
    "?",
    "D",
    "F",
    "H",
    "I",
    "M",
    "S",
    "T",
    "a",
    "an",
    "au",
    "b",
    "c",
    "ch",
    "ck",
    "d",
    "e",
    "en",
    "es",
    "f",
    "g",
    "h",
    "ht",
    "i",
    "is",
    "j",
    "k",
    "l",
    "la",
    "ll",
    "lo",
    "m",
    "n",
    "ne",
    "o",
    "ow",
    "p",
    "q",
    "r",
    "s",
    "t",
    "te",
    "tz",
    "u",
    "ut",
    "v",
    "w",
    "x",
    "y",
    "z",
    "\u00f6",
    "\u00fc",
    "\u2581",
    "\u2581H",
    "\u2581M",
    "\u2581a",
    "\u2581d",
    "\u2581di",
    "\u2581f",
    "\u2581g",
    "\u2581it",
    "\u2581o",
    "\u2581s",
    "\u2581th",
    "\u2581to",
    "\u2581\u00fcber",
]
TOKENS = ["</s>", "<unk>", *PIECES, ">>deu<<", ">>fra<<", "<pad>"]
ENCODED = [
    ("Hello, how are you?", [59, 10, 23, 34, 37, 3, 59, 28, 42, 62, 45, 23, 59, 55, 41, 50, 7, 0]),
    (">>deu<< Hello you", [73, 59, 10, 23, 34, 37, 59, 55, 41, 50, 0]),
    (">>fra<<Hello  you ", [74, 59, 10, 23, 34, 37, 59, 55, 41, 50, 0]),
    ("  The fox's 12 dogs  ", [59, 14, 28, 23, 65, 41, 54, 2, 46, 59, 5, 6, 59, 22, 41, 27, 46, 0]),
    ("", [0]),
    ("Moechte", [59, 12, 41, 23, 19, 28, 48, 0]),
]
DECODED = [
    ([4, 33, 53, 11, 36, 72, 11, 11, 4], ".kwIll überII."),
    ([3, 39, 47, 65, 62, 21, 14, 66, 43], ",nt f ackT gp"),
    ([11, 67, 24, 24, 21, 20, 42, 41, 15], "I itenenckchowoa"),
]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "source.spm").write_bytes(SOURCE)
    write_ids(tmp_path, {token: index for index, token in enumerate(TOKENS)})
    return tmp_path


def write_ids(directory, ids):
    (directory / "vocab.json").write_text(json.dumps(ids))


def test_texts_are_split_as_by_transformers(directory):
    tokenizer = Tokenizer.open(directory)
    for text, ids in ENCODED:
        assert tokenizer.encode(text) == ids


def test_tokens_are_joined_as_by_transformers(directory):
    tokenizer = Tokenizer.open(directory)
    for ids, text in DECODED:
        assert tokenizer.decode(ids).strip() == text
        pieces = [tokenizer.token_text(token) for token in ids]
        assert "".join(pieces).strip() == text
    assert tokenizer.decode([0, 75]) == ""


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ({"</s>": 0, "<unk>": 2}, r"has ids \[0, 2\], expected 0, 1, 2"),
        ({"</s>": 0, "a": "b"}, "expected 0, 1, 2"),
        ({"a": 0, "<unk>": 1}, "has no token </s>"),
    ],
)
def test_other_ids_are_refused(directory, ids, text):
    write_ids(directory, ids)
    with pytest.raises(StartError, match=text):
        Tokenizer.open(directory)
