"""Fields for the languages of translations, by the names of transformers."""

from typing import Any

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.frontends.chat.fields import translation


@translation("src_lang", to="source_language")
def source_language(body: Any, _: ModelCard) -> str | None:
    """Choose the language of the prompt, of models with tokens of languages (NLLB)."""
    language: str | None = body.src_lang
    return language


@translation("tgt_lang", to="target_language")
def target_language(body: Any, _: ModelCard) -> str | None:
    """Choose the language of the answer in the same way."""
    language: str | None = body.tgt_lang
    return language


BOTH = (source_language, target_language)
