"""Languages of models that translate: their tokens in a vocabulary, and where a prompt has them.

M2M100, NLLB and mBART have a token for each language: of the source in the prompt, of the target
at the start of the answer.  Knows no engine.
"""

import re
from collections.abc import Mapping

from mindspore_serving.core.llm_messages import LANGUAGES
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

SOURCE, TARGET = LANGUAGES.values()
_TOKEN = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")
_MIN_LANGUAGES = 2
_MAX_LISTED = 60


def find_languages(tokenizer: Tokenizer | None) -> dict[str, int]:
    """Return the token of each language by its code, as "fr_XX", "fra_Latn" or "fr"; none if none.

    A model of a single language has none to choose.
    """
    languages = {}
    for token_id, text in tokenizer.special() if tokenizer else ():
        match = _TOKEN.fullmatch(text)
        if match:
            languages[match[1] or match[2]] = token_id
    return dict(sorted(languages.items())) if len(languages) >= _MIN_LANGUAGES else {}


def language_token(languages: Mapping[str, int], name: str, code: str) -> int:
    """Return the token of a language; its code may end before "_", if one language begins so.

    Raises InvalidField for the field `name`, which lists the languages.
    """
    if not languages:
        problem = "expected none: the model has no tokens of languages; say it in the prompt"
        raise InvalidField(name, f"is {code!r:.40}, {problem}")
    matching = [code] if code in languages else []
    matching = matching or [known for known in languages if known.partition("_")[0] == code]
    if len(matching) == 1:
        return languages[matching[0]]
    known = matching or [*languages]
    listed = ", ".join(known[:_MAX_LISTED])
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    raise InvalidField(name, f"is {code!r:.40}, expected one of {listed}{more}")


def with_source(ids: list[int], languages: Mapping[str, int], code: str) -> list[int]:
    """Return a prompt whose token of a language, its first or its last, is that of `code`.

    Raises InvalidField for an unknown language, or for a prompt without such a token.
    """
    token, known = language_token(languages, SOURCE, code), set(languages.values())
    position = next((index for index in (0, -1) if ids and ids[index] in known), None)
    if position is None:
        problem = "expected a prompt that begins or ends with the token of a language"
        raise InvalidField(SOURCE, f"is {code!r:.40}, {problem}")
    changed = ids[:]
    changed[position] = token
    return changed
