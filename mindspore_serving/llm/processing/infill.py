"""Prompts that fill in the middle: a prefix and a suffix, around a gap that the model writes.

A code model has tokens for the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.processing.text_reader import PER_TOKEN
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_PREFIX, _SUFFIX = "{prefix}", "{suffix}"


@dataclass(frozen=True, slots=True)
class InfillForm:
    """Order of a prompt's parts: tokens, and the places of prefix and suffix."""

    models: str
    parts: tuple[str, ...]
    end: str = ""  # token that ends the middle, beside the model's end tokens

    @property
    def tokens(self) -> list[str]:
        """Tokens by which the form is recognized in a vocabulary."""
        return [part for part in self.parts if part not in (_PREFIX, _SUFFIX)]


INFILL_FORMS = (
    InfillForm(
        "Qwen2.5-Coder, Qwen3-Coder, CodeGemma",
        ("<|fim_prefix|>", _PREFIX, "<|fim_suffix|>", _SUFFIX, "<|fim_middle|>"),
    ),
    InfillForm(
        "StarCoder, StarCoder 2, Granite",
        ("<fim_prefix>", _PREFIX, "<fim_suffix>", _SUFFIX, "<fim_middle>"),
    ),
    InfillForm("SantaCoder", ("<fim-prefix>", _PREFIX, "<fim-suffix>", _SUFFIX, "<fim-middle>")),
    InfillForm(
        "DeepSeek-Coder, DeepSeek V2 and V3",
        ("<｜fim▁begin｜>", _PREFIX, "<｜fim▁hole｜>", _SUFFIX, "<｜fim▁end｜>"),
    ),
    InfillForm("Code Llama", ("▁<PRE>", _PREFIX, "▁<SUF>", _SUFFIX, "▁<MID>"), end="▁<EOT>"),
    InfillForm("Codestral", ("[SUFFIX]", _SUFFIX, "[PREFIX]", _PREFIX)),
)
"""Forms by their tokens; the first whose tokens are all in the vocabulary is taken."""

_REPOSITORIES = ("<|repo_name|>", "<repo_name>", "<reponame>", "<|reponame|>")
_FILES = ("<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>", "<|filename|>")
_PADS = ("<|fim_pad|>", "<fim_pad>")
# Texts of llama.cpp for models without such a token, and for files without a name.
_SNIPPET = "\n\n--- snippet ---\n\n"
_REPOSITORY_NAME, _FILE_NAME = "myproject\n", "filename\n"


def find_infill_form(tokenizer: Tokenizer) -> InfillForm | None:
    """Return the form that the vocabulary of a model shows, None for no form."""
    for form in INFILL_FORMS:
        if all(tokenizer.token_id(token) is not None for token in form.tokens):
            return form
    return None


def infill_ids(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int]:
    """Return the tokens of a prompt whose answer stands between `prefix` and `suffix`.

    Raises InvalidField if the model has no tokens for it.
    """
    form = find_infill_form(tokenizer)
    if form is None:
        raise InvalidField(
            "suffix",
            "is set, but the vocabulary of this model has no tokens to fill in the middle: leave "
            "it out, or serve a code model",
        )
    texts = {_PREFIX: prefix, _SUFFIX: suffix}
    ids = tokenizer.bos_ids()
    for part in form.parts:
        if part in texts:
            ids += tokenizer.encode(texts[part], add_special=False)
        else:
            token_id = tokenizer.token_id(part)
            assert token_id is not None
            ids.append(token_id)
    return ids


def file_ids(tokenizer: Tokenizer, files: Sequence[tuple[str, str]], room: int) -> list[int]:
    """Return the tokens of other files, (name, text), which stand before an infilled prompt.

    The first files are left out until there are at most `room` tokens.  A model without tokens for
    files gets their texts between marks that are text, without their names.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    mark = _first_id(tokenizer, _FILES)
    repository = _first_id(tokenizer, _REPOSITORIES)
    before = repository + encode(_REPOSITORY_NAME) if repository else []
    after = mark + encode(_FILE_NAME) if mark else []
    room -= len(before) + len(after)
    kept: list[list[int]] = []
    for name, text in reversed(files):
        if len(text) > room * PER_TOKEN:
            break
        ids = [*mark, *encode(f"{name}\n{text}")] if mark else encode(_SNIPPET + text)
        room -= len(ids)
        if room < 0:
            break
        kept.append(ids)
    if not kept:
        return []
    return [token_id for ids in (before, *reversed(kept), after) for token_id in ids]


def check_infill(request: Generate) -> str:
    """Return the text before the middle.  Raises InvalidField if there can be no middle."""
    if not isinstance(request.prompt, str) or request.messages is not None:
        raise InvalidField("suffix", "is set, expected a prompt that is text with it")
    if request.truncate is not None:
        raise InvalidField("suffix", "is set, expected no truncation of the prompt with it")
    return request.prompt


def infill_end_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that end a middle, beside the model's own end tokens.

    Behind the middle a model may go on with padding, or with another file.
    """
    form = find_infill_form(tokenizer)
    if form is None:
        return []
    names = (form.end, *_PADS, *_REPOSITORIES, *_FILES)
    ids = (tokenizer.token_id(name) for name in names if name)
    return [token_id for token_id in ids if token_id is not None]


def _first_id(tokenizer: Tokenizer, names: Sequence[str]) -> list[int]:
    """Return the token of the first of `names` that the vocabulary has, [] for none of them."""
    ids = (tokenizer.token_id(name) for name in names)
    return next(([token_id] for token_id in ids if token_id is not None), [])
