"""Tokens that Whisper's reference never writes, of a model whose files do not list them."""

from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_SYMBOLS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *[
        "<<",
        ">>",
        "<<<",
        ">>>",
        "--",
        "---",
        "-(",
        "-[",
        "('",
        '("',
        "((",
        "))",
        "(((",
        ")))",
        "[[",
        "]]",
        "{{",
        "}}",
        "♪♪",
        "♪♪♪",
    ],
]
_NOTES = [*"♩♪♫♬♭♮♯"]  # of several tokens, of which the first is enough
_MARKS = (
    "startoftranscript", "translate", "transcribe", "startoflm", "startofprev", "nospeech",
)  # fmt: skip


def suppressed_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that are never written, and those not at the beginning of a text."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    never = {encode(" -")[0], encode(" '")[0]}  # "-" and "'" inside of words are allowed
    for symbol in (*_SYMBOLS, *_NOTES):
        for ids in (encode(symbol), encode(f" {symbol}")):
            if len(ids) == 1 or symbol in _NOTES:
                never.add(ids[0])
    marks = [tokenizer.token_id(f"<|{name}|>") for name in _MARKS]
    end = tokenizer.token_id("<|endoftext|>")
    first = [*encode(" "), *([] if end is None else [end])]
    return sorted(never) + [mark for mark in marks if mark is not None], first
