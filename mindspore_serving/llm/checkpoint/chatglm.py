"""Special tokens and chat templates of ChatGLM2, ChatGLM3 and GLM-4.

Their tokenizers have these in Python code instead of in files. The code is searched as text to tell
the models apart; it is never run.
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
RULE = "chatglm-bpe"  # pre-tokenizer rule, as in tokenizer.ggml.pre
# Special tokens after the SentencePiece pieces, in this order; ChatGLM2 lacks the last four.
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
    {%- if message.content or not message.tool_calls %}
        {{- '<|' ~ role ~ '|>' ~ (message.metadata or '') ~ BREAK ~ message.content }}
    {%- endif %}
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
# The system message of a chat with tools, and a call: the form that ChatGLM3 was trained on.
_TOOLS = """\
{%- if tools %}
    {%- set system = messages[0].content if messages[0].role == 'system' else
        'Answer the following questions as best as you can. '
        'You have access to the following tools:' %}
    {%- if messages[0].role == 'system' %}{%- set messages = messages[1:] %}{%- endif %}
    {{- '<|system|>\\n ' ~ system ~ '\\n' }}
    {{- tools | map(attribute='function') | list | tojson(indent=4) }}
{%- endif %}
"""
_CALL = """\
    {%- for call in message.tool_calls or [] %}
        {{- '<|assistant|>' ~ call.function.name ~ '\\n ```python\\ntool_call(' }}
        {%- for name, value in call.function.arguments.items() %}
            {%- set shown = {true: 'True', false: 'False', none: 'None'} %}
            {{- '' if loop.first else ', ' }}
            {{- name ~ '=' ~ (shown[value] if value is boolean or value is none
                              else value | tojson) }}
        {%- endfor %}
        {{- ')\\n```' }}
    {%- endfor %}
"""
# With the space that SentencePiece puts before the text of each message.
_CHATGLM3 = _ROLES.replace("BREAK", "'\\n '").replace("{%- endfor %}", _CALL + "{%- endfor %}", 1)
CHATGLM3 = "{{- '[gMASK]sop' }}\n" + _TOOLS + _CHATGLM3
GLM4 = "{{- '[gMASK]<sop>' }}\n" + _ROLES.replace("BREAK", "'\\n'")


def has_tokenizer(directory: Path, options: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer in `directory` is one of ChatGLM's.

    `options` is its tokenizer_config.json; without a class there, config.json decides.
    """
    kind = options.get("tokenizer_class")
    if kind:
        return kind in CLASSES
    return read_optional_json(directory / "config.json").get("model_type") == "chatglm"


def with_special_tokens(
    tokenizer: Json, file: TokenizerSource, options: Mapping[str, Any], *, of_ranks: bool
) -> Json:
    """Add the special tokens to `tokenizer` of `file`, and those that begin each text.

    `options` is tokenizer_config.json, which lists all special tokens of files of ranks. Raises
    StartError for special tokens that are missing or have other ids.
    """
    tokens = file.texts("tokenizer.ggml.tokens")
    count, listed = len(tokens), added_tokens(options)
    standard = {count + index: token for index, token in enumerate(SPECIAL)}
    special = listed if of_ranks else standard
    begin = [index for index, token in special.items() if token in ("[gMASK]", "sop", "<sop>")]
    is_elsewhere = any(
        special.get(index, token) != token or (token in standard.values() and index not in special)
        for index, token in listed.items()
    )
    follows = sorted(special) == list(range(count, count + len(special)))
    if len(begin) != 2 or not follows or is_elsewhere or set(tokens) & set(special.values()):
        raise StartError(
            f"{file.path} has {count} tokens, and tokenizer_config.json has added_tokens_decoder "
            f"{listed!r:.200}, expected ChatGLM's special tokens after them, each only once; a "
            "tokenizer.json is needed"
        )
    added = [added_token(index, token, is_special=True) for index, token in special.items()]
    return {
        **tokenizer,
        "added_tokens": [*tokenizer["added_tokens"], *added],
        "post_processor": template({**dict(enumerate(tokens)), **special}, begin, []),
    }


def added_tokens(options: Mapping[str, Any]) -> dict[int, str]:
    """Return the added tokens of tokenizer_config.json (`options`), by id."""
    decoder = options.get("added_tokens_decoder")
    tokens = decoder if isinstance(decoder, Mapping) else {}
    return {
        int(index): token["content"]
        for index, token in tokens.items()
        if str(index).isdecimal()
        and isinstance(token, Mapping)
        and type(token.get("content")) is str
    }


def turn_ends(token_id: Callable[[str], int | None]) -> list[int]:
    """Return the tokens after an answer, which begin another turn; none for other tokenizers."""
    if token_id("[gMASK]") is None:
        return []
    ends = [token_id(token) for token in ("<|user|>", "<|observation|>")]
    return [index for index in ends if index is not None]


def chat_template(directory: Path) -> str | None:
    """Return the chat template of the tokenizer in `directory`.

    Returns None for another tokenizer, or if the model cannot be told from its code.
    """
    options = read_optional_json(directory / "tokenizer_config.json")
    if not has_tokenizer(directory, options):
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
