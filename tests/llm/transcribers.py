"""Tiny random language models that transcribe, and the texts that transformers has them write."""

import json
from pathlib import Path

import tokenizers
import torch
import transformers

from mindspore_serving.llm.speech.pieces import cut
from tests.llm import listening, seeing

ENDS = [21, 146]  # tokens that the models would repeat for ever, which end an answer
MAX_TOKENS = 48
MARK = seeing.MARKS[listening.SOUND]
BEGIN = seeing.MARKS[listening.SOUND + 1]  # before a sound of Voxtral


def build(directory: Path, kind: str) -> Path:
    """The model's directory, below `directory`."""
    target = listening.build(directory, kind)
    path = target / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": ENDS}))
    return target


class Transcriber:
    """Model of transformers in a directory, asked for a text as its processor does."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._kind, self._reference = kind, listening.Reference(directory, kind)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))

    def text(self, samples: listening.Sound, start: str, context: str = "") -> str:
        """Text of a recording, whose pieces are asked for one by one."""
        pieces = [samples[piece.begin : piece.end] for piece in cut(samples)]
        return " ".join(self._text(piece, start, context) for piece in pieces)

    def _text(self, samples: listening.Sound, start: str, context: str) -> str:
        sound = self._sound(len(samples))
        prompt = f"{context and f'system:{context}'}user:{sound}assistant:{start}"
        ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        tokens = self._reference.greedy(ids, [samples], MAX_TOKENS)
        ends = [index for index, token in enumerate(tokens) if token in ENDS]
        return self._tokenizer.decode(tokens[: ends[0] if ends else None]).strip()

    def _sound(self, count: int) -> str:
        if self._kind == "voxtral":
            return BEGIN + MARK * (25 * -(-count // (2 * listening.RATE)))
        frames = torch.tensor(max(count, listening.RATE // 2) // 160)
        length = transformers.Qwen3ASRProcessor._get_audio_token_length(None, frames)
        return f"<img>{MARK * int(length)}</img>"
