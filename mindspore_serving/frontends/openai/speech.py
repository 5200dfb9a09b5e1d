"""POST /v1/audio/speech: the sound of a text, sent while it is spoken; GET /v1/audio/voices."""

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Refused, RequestRefused
from mindspore_serving.core.speech_messages import SOUND_FORMATS, Speak, SpeechEnded, Spoken
from mindspore_serving.errors import InvalidField, ServingError
from mindspore_serving.frontends import access, sse
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields, unexpected
from mindspore_serving.frontends.chat.models import Generation, ServedModel
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.request_options import request_options_of

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"
_NAMES = {"text": "input", "format": "response_format"}  # of fields, by those of `Speak`
FIELDS = Fields(
    "openai",
    refused=(
        FieldRefusal("instructions", "is not supported: these models take none; leave it out"),
    ),
    ignored=("user",),
)


class VoiceReference(msgspec.Struct):
    """Voice in the form of an object."""

    id: str


class SpeakRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/audio/speech."""

    input: Annotated[str, Meta(description="the text to speak")]
    model: str | None = None
    voice: Annotated[
        str | VoiceReference | None, Meta(description="one of the model's; by default its first")
    ] = None
    response_format: Annotated[
        str, Meta(description=f"one of {', '.join(SOUND_FORMATS)}; pcm has 24,000 samples a second")
    ] = "mp3"
    speed: Annotated[float, Meta(description="0.25 to 4")] = 1.0
    stream_format: Annotated[str, Meta(description="audio, or sse for events")] = "audio"
    language: Annotated[
        str, Meta(description="code as en-us, for models whose voices speak several")
    ] = ""
    instructions: str | None = None


class VoiceList(msgspec.Struct):
    """Answer of /v1/audio/voices."""

    voices: tuple[str, ...]
    languages: tuple[str, ...]


class SpeechUsage(msgspec.Struct):
    """Phonemes that were spoken; sound is not counted."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(msgspec.Struct, tag_field="type", tag="speech.audio.delta"):
    """Event of a stream: more of the sound, in base64."""

    audio: str


class SpeechDone(msgspec.Struct, tag_field="type", tag="speech.audio.done"):
    """Last event of a stream."""

    usage: SpeechUsage


async def speak(state: AppState, http: Request, body: SpeakRequest) -> Response:
    """Speak a text; the answer begins with its first sentence."""
    FIELDS.refuse(body)
    if body.response_format not in SOUND_FORMATS:
        known = f"one of {', '.join(SOUND_FORMATS)}"
        raise unexpected("response_format", body.response_format, known)
    if body.stream_format not in ("audio", "sse"):
        raise unexpected("stream_format", body.stream_format, "audio or sse")
    model = _find(state, body.model)
    request = _to_request(body)
    generation = model.speak(request, request_options_of(http))
    try:
        first = await while_connected(http, _next(generation))
    except BaseException:
        generation.cancel()
        raise
    if body.stream_format == "sse":
        return sse.EventStream(_events(generation, first))
    media = SOUND_FORMATS[request.format]
    return sse.EventStream(_sound(generation, first), media_type=media, ping=b"")


def list_voices(state: AppState, http: Request) -> VoiceList:
    """Return the voices of a model, by default of the first that synthesizes speech."""
    card = _find(state, http.query_params.get("model")).card
    return VoiceList(card.voices, card.languages)


def _find(state: AppState, name: str | None) -> ServedModel:
    """Return a model that synthesizes speech.  Raises NotFound or InvalidField."""
    model = state.models.find(name, purpose="speak")
    if not model.can("speak"):
        raise InvalidField("model", text=f"model {model.name!r} does not synthesize speech")
    return model


def _to_request(body: SpeakRequest) -> Speak:
    voice = body.voice.id if isinstance(body.voice, VoiceReference) else body.voice
    return Speak(
        text=body.input,
        voice=voice or "",
        language=body.language.lower(),
        format=body.response_format,
        speed=body.speed,
    )


async def _next(generation: Generation) -> Spoken | SpeechEnded:
    """Return the next event.  Raises RequestRefused, or another ServingError."""
    event = await generation.next()
    if isinstance(event, Refused):
        name = _NAMES.get(event.field or "", event.field or "")
        text = event.text.replace(event.field, name, 1) if event.field else event.text
        raise RequestRefused(msgspec.structs.replace(event, field=name, text=text))
    if not isinstance(event, Spoken | SpeechEnded):
        raise ServingError("the model returned no sound")
    if isinstance(event, SpeechEnded):
        access.note_tokens(event.num_phonemes, 0)
    return event


async def _sound(generation: Generation, event: Spoken | SpeechEnded) -> AsyncIterator[bytes]:
    """Iterate over the bytes of a file; an error breaks the connection, as the file is broken."""
    with generation:
        while isinstance(event, Spoken):
            if event.sound:
                yield event.sound
            event = await _next(generation)


async def _events(generation: Generation, event: Spoken | SpeechEnded) -> AsyncIterator[bytes]:
    with generation:
        try:
            while isinstance(event, Spoken):
                delta = SpeechDelta(b64encode(event.sound).decode())
                yield sse.event(msgspec.json.encode(delta))
                event = await _next(generation)
            usage = SpeechUsage(event.num_phonemes, 0, event.num_phonemes)
            yield sse.event(msgspec.json.encode(SpeechDone(usage)))
        except Exception as error:
            yield to_failure(error).to_event()
