"""Tokenizers of Marian models: pieces of source.spm, with the ids of vocab.json.

The vocabulary has the pieces of both languages.  SentencePiece splits a prompt at pieces of the
source; a character that none has is looked up in the vocabulary.  So longer pieces of the target
are not for prompts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.tokenizer import CONTROL, NORMAL, UNKNOWN, Json
from mindspore_serving.llm.checkpoint.model_files import read_json

NAME, IDS = "source.spm", "vocab.json"
UNMATCHED = "\U0010ffff"  # begins pieces that no text has; not a character
_MAX_TOKENS = 1 << 20
_UNKNOWN_COST = 10.0  # of a character that no piece has, in SentencePiece


def has_files(directory: Path) -> bool:
    """Return whether `directory` has the files of such a tokenizer."""
    return (directory / NAME).is_file() and (directory / IDS).is_file()


def with_ids(metadata: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the metadata of source.spm with the tokens of vocab.json.

    Raises StartError unless those have the ids from 0 on, an end and an unknown token.
    """
    path = directory / IDS
    ids = read_json(path)
    tokens = sorted(ids, key=lambda token: ids[token] if type(ids[token]) is int else -1)
    if len(ids) > _MAX_TOKENS or [ids[token] for token in tokens] != list(range(len(ids))):
        raise StartError(f"{path} has ids {list(ids.values())!r:.80}, expected 0, 1, 2 and so on")
    if missing := [token for token in ("</s>", "<unk>") if token not in ids]:
        raise StartError(f"{path} has no token {missing[0]}, which a Marian model needs")
    key = "tokenizer.ggml.{}".format
    scores = dict(zip(metadata[key("tokens")], metadata[key("scores")], strict=True))
    types = {token: _type(token) for token in tokens}
    lowest = min(scores.values()) - _UNKNOWN_COST
    is_matched = [token in scores or types[token] != NORMAL or len(token) == 1 for token in tokens]
    return {
        **metadata,
        key("tokens"): [
            token if known else UNMATCHED + token
            for token, known in zip(tokens, is_matched, strict=True)
        ],
        key("scores"): [scores.get(token, lowest) for token in tokens],
        key("token_type"): [types[token] for token in tokens],
        key("unknown_token_id"): ids["<unk>"],
        key("eos_token_id"): ids["</s>"],
        key("bos_token_id"): ids["</s>"],
    }


def with_decoder(result: Json) -> Json:
    """Return tokenizer.json with a decoder that writes pieces of the target as they are."""
    unmark = {"type": "Replace", "pattern": {"String": UNMATCHED}, "content": ""}
    return {**result, "decoder": {"type": "Sequence", "decoders": [unmark, result["decoder"]]}}


def _type(token: str) -> int:
    """Return the type of a token; a language, as ">>fra<<", is matched before texts are split."""
    if token == "<unk>":
        return UNKNOWN
    is_language = token.startswith(">>") and token.endswith("<<")
    return CONTROL if token in ("</s>", "<pad>", "<s>") or is_language else NORMAL
