"""What the tokenizers of ChatGLM2, ChatGLM3 and GLM-4 have in their code and not in their files:
special tokens, and the form of chats.  The code is read as a text, to tell them apart, and never
run.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.tokenizer import (
    Json,
    TokenizerSource,
    added_token,
    template,
)
from mindspore_serving.llm.checkpoint.model_files import read_optional_json

CLASSES = ("ChatGLMTokenizer", "ChatGLM4Tokenizer")  # tokenizer_class
CODE = "tokenization_chatglm.py"
MAX_CODE = 2**20  # bytes
RULE = "chatglm-bpe"  # how text is cut before ranks merge, as tokenizer.ggml.pre
# They follow the pieces of SentencePiece in this order; ChatGLM2 does not use the last four.
SPECIAL = (
    "[MASK]", "[gMASK]", "[sMASK]", "sop", "eop",
    "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
)  # fmt: skip
_ROLES = """\
{%- for message in messages %}
    {%- set role = 'observation' if message.role == 'tool' else message.role %}
    {%- if role not in ('system', 'user', 'assistant', 'observation') %}
        {{- raise_exception('the role ' ~ role ~ ' is none of system, user, assistant, tool') }}
    {%- endif %}
    {{- '<|' ~ role ~ '|>' ~ (message.metadata or '') ~ BREAK ~ message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
_ROUNDS = """\
{{- '[gMASK]sop' }}
{%- set rounds = namespace(count=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set rounds.count = rounds.count + 1 %}
        {{- '' if loop.first else '\\n\\n' }}
        {{- '[Round ' ~ rounds.count ~ ']\\n\\n问：' ~ message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '\\n\\n答：' ~ message.content }}
    {%- else %}
        {{- raise_exception('the role ' ~ message.role ~ ' is none of user, assistant') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '\\n\\n答：' }}{% endif %}"""
CHATGLM2 = _ROUNDS
# A space, as SentencePiece puts one before the text of each message.
CHATGLM3 = "{{- '[gMASK]sop' }}\n" + _ROLES.replace("BREAK", "'\\n '")
GLM4 = "{{- '[gMASK]<sop>' }}\n" + _ROLES.replace("BREAK", "'\\n'")


def is_in(directory: Path, options: Mapping[str, Any]) -> bool:
    """Whether the tokenizer in `directory` is one of these: by tokenizer_config.json, whose content
    `options` is, or where that names no class by config.json.
    """
    kind = options.get("tokenizer_class")
    if kind:
        return kind in CLASSES
    return read_optional_json(directory / "config.json").get("model_type") == "chatglm"


def with_special_tokens(
    tokenizer: Json, file: TokenizerSource, options: Mapping[str, Any], *, of_ranks: bool
) -> Json:
    """`tokenizer` of `file`, with the tokens that follow its own, and with what each text begins
    with.  `options` are those of tokenizer_config.json, where files of ranks have them all.  Raises
    StartError for special tokens that are missing, or elsewhere.
    """
    tokens = file.texts("tokenizer.ggml.tokens")
    count, given = len(tokens), added_tokens(options)
    own = {count + index: token for index, token in enumerate(SPECIAL)}
    special = given if of_ranks else own
    begin = [index for index, token in special.items() if token in ("[gMASK]", "sop", "<sop>")]
    is_elsewhere = any(
        special.get(index, token) != token or (token in own.values() and index not in special)
        for index, token in given.items()
    )
    follows = sorted(special) == list(range(count, count + len(special)))
    if len(begin) != 2 or not follows or is_elsewhere or set(tokens) & set(special.values()):
        raise StartError(
            f"{file.path} has {count} tokens, and tokenizer_config.json has added_tokens_decoder "
            f"{given!r:.200}, expected the special tokens of ChatGLM behind them, and none of them "
            "twice; a tokenizer.json is needed"
        )
    added = [added_token(index, token, is_special=True) for index, token in special.items()]
    return {
        **tokenizer,
        "added_tokens": [*tokenizer["added_tokens"], *added],
        "post_processor": template({**dict(enumerate(tokens)), **special}, begin, []),
    }


def added_tokens(options: Mapping[str, Any]) -> dict[int, str]:
    """Those that tokenizer_config.json, whose content `options` is, has by id."""
    given = options.get("added_tokens_decoder")
    found = given if isinstance(given, Mapping) else {}
    return {
        int(index): one["content"]
        for index, one in found.items()
        if str(index).isdecimal() and isinstance(one, Mapping) and type(one.get("content")) is str
    }


def turn_ends(token_id: Callable[[str], int | None]) -> list[int]:
    """The tokens behind an answer, which begin another turn; none of other tokenizers."""
    if token_id("[gMASK]") is None:
        return []
    found = [token_id(token) for token in ("<|user|>", "<|observation|>")]
    return [index for index in found if index is not None]


def chat_template(directory: Path) -> str | None:
    """The form of chats that is in the code of the tokenizer in `directory`; None if it is another
    tokenizer's, or cannot be known.
    """
    options = read_optional_json(directory / "tokenizer_config.json")
    if not is_in(directory, options):
        return None
    known = set(added_tokens(options).values())
    if {"<sop>", "<|assistant|>"} <= known:
        return GLM4
    code = _code(directory / CODE)
    if "<|assistant|>" in code or "<|assistant|>" in known:
        return CHATGLM3
    return CHATGLM2 if "[Round " in code else None


def _code(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_CODE).decode(errors="replace")
    except OSError:
        return ""
