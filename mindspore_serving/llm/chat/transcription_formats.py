"""Transcription by language models: how each family is asked for a text, and how it answers.

A row says both for an architecture.  Knows no tokens, no sound and no engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MAX_HEADER = 64  # characters before the text of an answer, at most


@dataclass(frozen=True, slots=True)
class TranscriptionFormat:
    """Requests and answers of one family.

    The prompt is a conversation: the text of the client for the system, the sound of the user, and
    the begin of the answer.

    Attributes:
        languages: names of the languages in prompts, by their codes.
        start: returns the begin of the answer, from the name of a language, "" for none.
        takes_prompt: a text of the client may stand before the sound.
        header: what answers begin with if the client names no language: the text before the
            language, and that behind it.
    """

    languages: Mapping[str, str]
    start: Callable[[str], str]
    takes_prompt: bool = False
    header: tuple[str, str] | None = None


class AnswerText:
    """Text of an answer, while it is written.

    `language` is the code of that which the model has told, `code` if it tells none.
    """

    def __init__(self, row: TranscriptionFormat, code: str) -> None:
        self._format, self.language = row, code
        self._header = "" if row.header is not None and not code else None

    def add(self, text: str) -> str:
        """Take more of the answer; return what belongs to the text."""
        if self._header is None or self._format.header is None:
            return text
        self._header += text
        before, behind = self._format.header
        language, mark, rest = self._header.removeprefix(before).partition(behind)
        if not self._header.startswith(before[: len(self._header)]):
            return self.end()
        if mark:
            self._header = None
            self.language = self._code(language.strip())
            return rest
        return self.end() if len(self._header) > _MAX_HEADER else ""

    def end(self) -> str:
        """Return what was held back, as the header of an answer, and is none."""
        held, self._header = self._header or "", None
        return held

    def _code(self, language: str) -> str:
        codes = {name: code for code, name in self._format.languages.items()}
        return codes.get(language, "")


def find_transcription_format(architecture: str) -> TranscriptionFormat | None:
    """Return the row of an architecture; None if its models are not made to transcribe."""
    return FORMATS.get(architecture)


def _qwen_start(language: str) -> str:
    return f"language {language}<asr_text>" if language else ""


def _voxtral_start(language: str) -> str:
    return f"lang:{language}[TRANSCRIBE]" if language else "[TRANSCRIBE]"


_QWEN_LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fr": "French",
    "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "mk": "Macedonian", "ms": "Malay", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "th": "Thai",
    "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
}  # fmt: skip
_VOXTRAL_LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt")
FORMATS = {
    "Qwen3ASRForConditionalGeneration": TranscriptionFormat(
        _QWEN_LANGUAGES, _qwen_start, takes_prompt=True, header=("language ", "<asr_text>")
    ),
    "VoxtralForConditionalGeneration": TranscriptionFormat(
        {code: code for code in _VOXTRAL_LANGUAGES}, _voxtral_start
    ),
}
