"""SessionSettings of a session, as clients send and read them; the older protocol's too.

Knows no sound.  `session.update` changes the settings that it names.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.decoding import decode
from mindspore_serving.frontends.realtime.sound import FORMATS, SampleFormat

_LOGPROBS = "item.input_audio_transcription.logprobs"
_MAX_PROMPT, _MAX_KEYWORDS = 10_000, 100


class ServerVad(
    msgspec.Struct, frozen=True, tag="server_vad", tag_field="type", forbid_unknown_fields=True
):
    """Turns that the server detects.  The last three fields are of voice conversations."""

    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=32, le=30_000)] = 500
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = None

    def to_object(self) -> dict[str, Any]:
        names = ("threshold", "prefix_padding_ms", "silence_duration_ms")
        return {"type": "server_vad", **{name: getattr(self, name) for name in names}}


class Transcription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model and hints for the texts of turns."""

    model: str | None = None
    language: str | None = None
    prompt: Annotated[str, Meta(max_length=_MAX_PROMPT)] | None = None
    keywords: Annotated[list[str], Meta(max_length=_MAX_KEYWORDS)] | None = None

    @property
    def whole_prompt(self) -> str:
        """Text before that of a turn, with the keywords."""
        words = ", ".join(self.keywords or ())[:_MAX_PROMPT]
        return f"{words} {self.prompt or ''}".strip()


class InputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A format of sound."""

    type: str = FORMATS[0].name
    rate: int | None = None


class NoiseReduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Noise reduction, which this server does not have."""

    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of the settings of the sound."""

    format: InputFormat | UnsetType = UNSET
    noise_reduction: NoiseReduction | None | UnsetType = UNSET
    transcription: Transcription | None | UnsetType = UNSET
    turn_detection: ServerVad | None | UnsetType = UNSET


class Audio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of the settings of sound."""

    input: Input = Input()


class SessionKind(msgspec.Struct, frozen=True):
    """Kind of a session, without which its other fields are not read."""

    type: str | None = None


class SessionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The field `session` of session.update."""

    type: str
    audio: Audio = Audio()
    include: list[str] | None = None


class BetaChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The field `session` of transcription_session.update."""

    input_audio_format: str | UnsetType = UNSET
    input_audio_noise_reduction: NoiseReduction | None | UnsetType = UNSET
    input_audio_transcription: Transcription | None | UnsetType = UNSET
    turn_detection: ServerVad | None | UnsetType = UNSET
    include: list[str] | None = None
    modalities: list[str] | None = None


class SessionSettings(msgspec.Struct, frozen=True):
    """The settings of a session."""

    format: SampleFormat = FORMATS[0]
    transcription: Transcription | None = Transcription()
    turn_detection: ServerVad | None = ServerVad()

    def changed(self, body: bytes) -> "SessionSettings":
        """Return the settings after session.update.  Raises InvalidField."""
        kind = decode(body, SessionKind).type
        if kind != "transcription":
            raise InvalidField(
                "session.type",
                f"is {kind!r:.40}, expected 'transcription': models here speak in no conversation",
            )
        change = _decode(body, SessionChange)
        _check_include(change.include)
        new = change.audio.input
        form = self.format if new.format is UNSET else _find(new.format)
        return self._with(form, new.transcription, new.turn_detection)

    def changed_by_beta(self, body: bytes) -> "SessionSettings":
        """Return the settings after transcription_session.update.  Raises InvalidField."""
        change = _decode(body, BetaChange)
        _check_include(change.include)
        name = change.input_audio_format
        names = {form.beta_name: form for form in FORMATS}
        if name is not UNSET and name not in names:
            expected = f"is {name!r:.40}, expected one of {', '.join(names)}"
            raise InvalidField("session.input_audio_format", expected)
        form = self.format if name is UNSET else names[name]
        return self._with(form, change.input_audio_transcription, change.turn_detection)

    def _with(
        self,
        form: SampleFormat,
        transcription: Transcription | None | UnsetType,
        turn_detection: ServerVad | None | UnsetType,
    ) -> "SessionSettings":
        return SessionSettings(
            form,
            self.transcription if transcription is UNSET else transcription,
            self.turn_detection if turn_detection is UNSET else turn_detection,
        )

    def to_object(self) -> dict[str, Any]:
        """Return the settings as clients read them."""
        turns, transcription = self.turn_detection, self.transcription
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "audio": {
                "input": {
                    "format": self.format.to_object(),
                    "noise_reduction": None,
                    "transcription": transcription and msgspec.to_builtins(transcription),
                    "turn_detection": turns and turns.to_object(),
                }
            },
            "include": None,
        }

    def to_beta_object(self) -> dict[str, Any]:
        """Return the settings as clients of the older protocol read them."""
        turns, transcription = self.turn_detection, self.transcription
        return {
            "object": "realtime.transcription_session",
            "input_audio_format": self.format.beta_name,
            "input_audio_noise_reduction": None,
            "input_audio_transcription": transcription and msgspec.to_builtins(transcription),
            "turn_detection": turns and turns.to_object(),
            "include": None,
        }


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return decode(body, kind)
    except InvalidField as error:
        raise error.renamed(f"session.{error.field}".rstrip(".")) from None


def _check_include(include: list[str] | None) -> None:
    if include:
        text = f"has {include[0]!r:.60}, expected nothing: there are no {_LOGPROBS} here"
        raise InvalidField("session.include", text)


def _find(change: InputFormat) -> SampleFormat:
    form = next((form for form in FORMATS if form.name == change.type), None)
    name = "session.audio.input.format"
    if form is None:
        names = ", ".join(form.name for form in FORMATS)
        raise InvalidField(f"{name}.type", f"is {change.type!r:.40}, expected one of {names}")
    if change.rate not in (None, form.rate):
        raise InvalidField(f"{name}.rate", f"is {change.rate}, expected {form.rate}")
    return form
