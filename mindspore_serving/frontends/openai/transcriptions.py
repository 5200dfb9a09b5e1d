"""POST /v1/audio/transcriptions and /v1/audio/translations: the text of a recording."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.sampling_params import MAX_BEAMS
from mindspore_serving.core.speech_messages import Heard, SpokenSegment, Transcribe, Transcribed
from mindspore_serving.errors import InvalidField, TooLarge
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.bodies import OF_MESSAGES, in_words, read_body
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.chat.hearing import find_transcriber, next_heard
from mindspore_serving.frontends.chat.models import Generation, ServedModel
from mindspore_serving.frontends.chat.unknown_fields import KnownFields, name_ignored
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.forms import FORM_OVERHEAD, parse_form
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai.subtitles import to_srt, to_vtt
from mindspore_serving.frontends.request_options import request_options_of

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES = ("segment", "word")
_GRANULARITIES = "timestamp_granularities"  # also with "[]", as OpenAI's clients send it
_OPTION = "--limit max_file=BYTES"
_MAX_FIELDS, _MAX_PROMPT = 32, 10_000  # of a form, and characters
_MEDIA = ("audio/", "video/", "application/octet-stream", "application/ogg")
_IGNORED = ("chunking_strategy", "user")

_File = Annotated[
    str,
    Meta(
        description="the recording: wav, or with the extra `audio` also mp3, flac, ogg, m4a, mp4, "
        "webm, aac, aiff, amr, caf or wma",
        extra_json_schema={"format": "binary"},
    ),
]
_Prompt = Annotated[
    str,
    Meta(
        max_length=_MAX_PROMPT,
        description="text before the recording's, with names and spellings; the last 223 tokens",
    ),
]
_Temperature = Annotated[
    float,
    Meta(
        ge=0,
        le=1,
        description="of the sampling; 0 takes the likeliest tokens, and tries again at higher "
        "temperatures where the text repeats itself or is unlikely",
    ),
]
_BeamSize = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_BEAMS,
        description="texts that a beam search follows at temperature 0; 1: no search",
    ),
]
_Patience = Annotated[
    float,
    Meta(gt=0, le=10, description="complete texts that end the search, by `beam_size`"),
]
_LengthPenalty = Annotated[
    float,
    Meta(
        ge=-10,
        le=10,
        description="power of a text's length that divides its score in the search",
    ),
]
_Format = Annotated[str, Meta(description=f"one of {', '.join(FORMATS)}")]


class TranslationForm(msgspec.Struct, kw_only=True):
    """Form of /v1/audio/translations."""

    file: _File
    model: str | None = None
    prompt: _Prompt = ""
    response_format: _Format = "json"
    temperature: _Temperature = 0.0
    beam_size: _BeamSize = 1
    patience: _Patience = 1.0
    length_penalty: _LengthPenalty = 1.0


class TranscriptionForm(TranslationForm, kw_only=True):
    """Form of /v1/audio/transcriptions."""

    language: Annotated[str, Meta(description="code as en; without it the model finds it")] = ""
    hotwords: Annotated[_Prompt, Meta(description="words to expect, before the prompt")] = ""
    stream: Annotated[bool, Meta(description="send events; for json and text")] = False
    timestamp_granularities: Annotated[
        list[str], Meta(description="segment, word or both; for verbose_json")
    ] = []


class DurationUsage(msgspec.Struct):
    """Length of a recording in seconds, rounded up."""

    seconds: int
    type: str = "duration"


class AudioText(msgspec.Struct, kw_only=True):
    """Answer in the format json."""

    text: str
    usage: DurationUsage | UnsetType = UNSET


class AudioWord(msgspec.Struct):
    """Word of an answer."""

    word: str
    start: float
    end: float
    probability: float


class AudioSegment(msgspec.Struct):
    """Segment of an answer; `seek` counts hundredths of a second."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseAudioText(msgspec.Struct, kw_only=True):
    """Answer in the format verbose_json."""

    task: str
    language: str
    duration: float
    text: str
    segments: list[AudioSegment] | UnsetType = UNSET
    words: list[AudioWord] | UnsetType = UNSET
    usage: DurationUsage


class TextDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta"):
    """Event of a stream: more of the text."""

    delta: str


class TextDone(msgspec.Struct, tag_field="type", tag="transcript.text.done"):
    """Last event of a stream: the whole text."""

    text: str
    usage: DurationUsage


@dataclass(frozen=True, slots=True)
class _Heard:
    """The whole text of a recording."""

    segments: list[SpokenSegment]
    end: Transcribed

    @property
    def text(self) -> str:
        return "".join(row.text for row in self.segments).strip()


_TABLES: dict[type[TranslationForm], KnownFields] = {
    kind: KnownFields(path, kind, _IGNORED)
    for path, kind in ((TRANSCRIPTIONS, TranscriptionForm), (TRANSLATIONS, TranslationForm))
}


async def transcribe(state: AppState, http: Request) -> Response:
    """Write down a recording in its language."""
    return await _answer(state, http, TranscriptionForm)


async def translate(state: AppState, http: Request) -> Response:
    """Write down a recording in English."""
    return await _answer(state, http, TranslationForm)


async def _answer(state: AppState, http: Request, kind: type[TranslationForm]) -> Response:
    form, file, unknown = await _read(state, http, kind)
    model = find_transcriber(state.models, form.model)
    is_stream = isinstance(form, TranscriptionForm) and form.stream
    request = _to_request(form, file)
    if is_stream:
        response: Response = await _stream(http, model, request)
    else:
        heard = await while_connected(http, _hear(http, model, request))
        response = _write(form, request, heard)
    name_ignored(response, unknown)
    return response


async def _read(
    state: AppState, http: Request, kind: type[TranslationForm]
) -> tuple[TranslationForm, bytes, Sequence[str]]:
    """Return the form, the file and the names of unknown fields.

    Raises TooLarge before the body is read, InvalidField for a wrong field.
    """
    limit = min(state.models.limits.max_file, state.max_body)
    option = _OPTION if limit == state.models.limits.max_file else OF_MESSAGES
    body = await read_body(http, limit + FORM_OVERHEAD, option)
    async with await parse_form(http, body, _MAX_FIELDS) as parts:
        file, fields = parts.get("file"), _fields(parts)
        if not isinstance(file, UploadFile):
            raise InvalidField("file", "is missing, expected a file of sound")
        media = (file.content_type or _MEDIA[2]).lower()
        if not media.startswith(_MEDIA):
            raise InvalidField("file", f"has the type {media[:80]!r}, expected audio/* or video/*")
        content = await file.read()
        if len(content) > limit:
            raise TooLarge(f"the file has more than {limit} bytes; {option} sets this limit")
    unknown = _TABLES[kind].find_in(fields)
    try:
        form = msgspec.convert({**fields, "file": ""}, kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.").partition("[")[0]
        raise InvalidField(name, text=f"{name} is wrong: {in_words(problem)}") from None
    _check(form)
    return form, content, unknown


def _fields(parts: FormData) -> dict[str, Any]:
    """Return the fields of a form that are texts."""
    fields: dict[str, Any] = {}
    for key, value in parts.multi_items():
        name = key.removesuffix("[]")
        if name == _GRANULARITIES:
            fields.setdefault(name, []).append(value)
        elif key != "file":
            fields[key] = value
    return fields


def _check(form: TranslationForm) -> None:
    if form.response_format not in FORMATS:
        raise unexpected("response_format", form.response_format, f"one of {', '.join(FORMATS)}")
    if not isinstance(form, TranscriptionForm):
        return
    for name in form.timestamp_granularities:
        if name not in GRANULARITIES:
            raise unexpected(_GRANULARITIES, name, " or ".join(GRANULARITIES))
    if form.timestamp_granularities and form.response_format != "verbose_json":
        problem = f"needs response_format verbose_json, not {form.response_format}"
        raise InvalidField(_GRANULARITIES, problem)
    if form.stream and form.response_format not in ("json", "text"):
        raise InvalidField("stream", f"is true, which {form.response_format} has not: take json")


def _to_request(form: TranslationForm, file: bytes) -> Transcribe:
    is_long = isinstance(form, TranscriptionForm)
    words = form.hotwords if isinstance(form, TranscriptionForm) else ""
    granularities = form.timestamp_granularities if isinstance(form, TranscriptionForm) else []
    return Transcribe(
        file=file,
        language=form.language.lower() if isinstance(form, TranscriptionForm) else "",
        translates=not is_long,
        prompt=f"{words} {form.prompt}".strip(),
        temperature=form.temperature,
        beam_size=form.beam_size,
        patience=form.patience,
        length_penalty=form.length_penalty,
        has_times=form.response_format in FORMATS[2:],
        has_words="word" in granularities,
    )


async def _hear(http: Request, model: ServedModel, request: Transcribe) -> _Heard:
    segments: list[SpokenSegment] = []
    with model.transcribe(request, request_options_of(http)) as generation:
        while True:
            event = await next_heard(generation)
            if isinstance(event, Transcribed):
                return _Heard(segments, event)
            segments += event.segments


async def _stream(http: Request, model: ServedModel, request: Transcribe) -> Response:
    """Return a stream that has begun: an error before the first segment is no stream."""
    generation = model.transcribe(request, request_options_of(http), is_stream=True)
    try:
        first = await while_connected(http, next_heard(generation))
    except BaseException:
        generation.cancel()
        raise
    return sse.EventStream(_events(generation, first))


async def _events(generation: Generation, first: Heard | Transcribed) -> AsyncIterator[bytes]:
    texts: list[str] = []
    event = first
    with generation:
        try:
            while isinstance(event, Heard):
                for row in event.segments:
                    text = row.text if texts else row.text.lstrip()
                    texts.append(text)
                    yield sse.event(msgspec.json.encode(TextDelta(text)))
                event = await next_heard(generation)
            done = TextDone("".join(texts).strip(), _usage(event))
            yield sse.event(msgspec.json.encode(done))
        except Exception as error:
            yield to_failure(error).to_event()


def _write(form: TranslationForm, request: Transcribe, heard: _Heard) -> Response:
    texts: dict[str, Callable[[], str]] = {
        "text": lambda: heard.text + "\n",
        "srt": lambda: to_srt(heard.segments),
        "vtt": lambda: to_vtt(heard.segments),
    }
    if form.response_format in texts:
        media = "text/vtt" if form.response_format == "vtt" else "text/plain"
        return Response(texts[form.response_format](), media_type=f"{media}; charset=utf-8")
    if form.response_format == "json":
        return to_json(AudioText(text=heard.text, usage=_usage(heard.end)))
    granularities = form.timestamp_granularities if isinstance(form, TranscriptionForm) else []
    has_segments = not granularities or "segment" in granularities
    return to_json(
        VerboseAudioText(
            task="translate" if request.translates else "transcribe",
            language=heard.end.language,
            duration=round(heard.end.seconds, 3),
            text=heard.text,
            segments=_segments(heard) if has_segments else UNSET,
            words=_words(heard) if request.has_words else UNSET,
            usage=_usage(heard.end),
        )
    )


def _segments(heard: _Heard) -> list[AudioSegment]:
    return [
        AudioSegment(
            number, round(row.seek * 100), row.start, row.end, row.text, row.tokens,
            row.temperature, row.mean_logprob, row.compression, row.no_speech,
        )
        for number, row in enumerate(heard.segments)
    ]  # fmt: skip


def _words(heard: _Heard) -> list[AudioWord]:
    return [
        AudioWord(word.text.strip(), word.start, word.end, round(word.probability, 4))
        for row in heard.segments
        for word in row.words
    ]


def _usage(end: Transcribed) -> DurationUsage:
    return DurationUsage(-int(-end.seconds // 1))
