"""A session: events of a client, turns of its sound, and their texts.

Turns are written down by a model of speech, several at once and in any order; sound is decoded and
searched for speech on one thread for all sessions, a second of it at a time.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from mindspore_serving.aio import on_thread
from mindspore_serving.core.speech_messages import Heard, Transcribe
from mindspore_serving.errors import InvalidField, InvalidInputs, Overloaded
from mindspore_serving.frontends.bodies import check_values
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.chat.hearing import find_transcriber, next_heard
from mindspore_serving.frontends.chat.models import Generation, LanguageModels
from mindspore_serving.frontends.decoding import decode
from mindspore_serving.frontends.memory import Allowance
from mindspore_serving.frontends.realtime.settings import SessionSettings, Transcription
from mindspore_serving.frontends.realtime.sound import Samples, to_wav
from mindspore_serving.frontends.realtime.turns import InputSound, SpeechStarted, SpeechStopped
from mindspore_serving.frontends.request_options import RequestOptions
from mindspore_serving.frontends.websocket.socket import WebSocket
from mindspore_serving.wire.json_shape import SMALL

MAX_WAITING = 16  # turns of a session that are written down at once
THREAD = "realtime"
_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_SESSION, _BETA_SESSION = "session", "transcription_session"


class ClientEvent(msgspec.Struct, frozen=True):
    """Fields of all events of clients."""

    type: str
    event_id: str | None = None


class UpdateEvent(ClientEvent, frozen=True, forbid_unknown_fields=True):
    """Event that changes settings."""

    session: msgspec.Raw = msgspec.Raw(b"{}")


class AppendEvent(ClientEvent, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Event with sound in base64."""

    audio: str


class BareEvent(ClientEvent, frozen=True, forbid_unknown_fields=True):
    """Event without a field."""


class TranscriptionSession:
    """A session, which `serve` runs over a WebSocket.

    Args:
        models: those that may transcribe its turns.
        options: timeout and priority of the requests for that.
        memory: quota in which the sound counts.
        voice_model: that of `SpeechDetector`.
        model: name of the model if the settings have none.
        seconds: after which it ends.
        is_beta: speak the older protocol.
    """

    def __init__(
        self,
        models: LanguageModels,
        options: RequestOptions,
        memory: Allowance,
        voice_model: Any,
        *,
        model: str | None,
        seconds: float,
        is_beta: bool,
    ) -> None:
        self._models, self._options, self._memory = models, options, memory
        self._voice_model, self._is_beta = voice_model, is_beta
        self._settings = SessionSettings(transcription=Transcription(model=model))
        self._sound = self._open(0)
        self._id, self._expires_at = _new_id("sess"), int(time.time() + seconds)
        self._item_id = self._last_item_id = ""  # of the turn that has begun, of the last one
        self._writing: set[asyncio.Task[None]] = set()
        self._socket: WebSocket
        self._takers: dict[str, tuple[type[Any], Callable[[Any], Awaitable[None]]]] = {
            "session.update": (UpdateEvent, self._update),
            "transcription_session.update": (UpdateEvent, self._update),
            "input_audio_buffer.append": (AppendEvent, self._append),
            "input_audio_buffer.commit": (BareEvent, self._commit),
            "input_audio_buffer.clear": (BareEvent, self._clear),
        }

    async def serve(self, socket: WebSocket) -> None:
        """Answer the events of a client until it leaves; then its turns are cancelled."""
        self._socket = socket
        self._emit_session(_BETA_SESSION if self._is_beta else _SESSION, "created")
        try:
            while True:
                await self._take(await socket.receive())
        finally:
            for task in self._writing:
                task.cancel()
            if self._writing:
                await asyncio.wait(self._writing)
            self._sound.close()

    # --- events of the client ---

    async def _take(self, message: str | bytes) -> None:
        event_id = None
        try:
            if isinstance(message, bytes):
                raise InvalidInputs("the message is binary, expected an event as text")
            body = message.encode()
            await check_values(body, self._models.limits)
            head = await _decoded(body, ClientEvent)
            event_id = head.event_id
            row = self._takers.get(head.type)
            if row is None:
                known = ", ".join(self._takers)
                raise InvalidField("type", f"is {head.type!r:.80}, expected one of {known}")
            kind, take = row
            await take(await _decoded(body, kind))
        except Exception as error:
            failure = to_failure(error)
            problem = {
                "type": failure.kind, "code": failure.reason, "message": failure.text,
                "param": failure.param, "event_id": event_id,
            }  # fmt: skip
            self._emit("error", error=problem)

    async def _update(self, event: UpdateEvent) -> None:
        is_beta = event.type.startswith(_BETA_SESSION)
        body, settings = bytes(event.session), self._settings
        new = settings.changed_by_beta(body) if is_beta else settings.changed(body)
        if new.format is not settings.format and self._sound.milliseconds:
            problem = "cannot change while sound waits: commit or clear it first"
            raise InvalidField("session.audio.input.format", problem)
        if new.transcription is not None and new.transcription.model is not None:
            find_transcriber(self._models, new.transcription.model)
        self._settings = new
        if (new.format, new.turn_detection) != (settings.format, settings.turn_detection):
            self._sound.close()
            self._sound, self._item_id = self._open(self._sound.now), ""
        self._emit_session(_BETA_SESSION if is_beta else _SESSION, "updated")

    async def _append(self, event: AppendEvent) -> None:
        form = self._settings.format
        samples = await on_thread(THREAD, form.decode, event.audio)
        for begin in range(0, len(samples), form.rate):  # other sessions get a turn
            await self._listen(samples[begin : begin + form.rate])

    async def _listen(self, samples: Samples) -> None:
        for change in await on_thread(THREAD, self._sound.append, samples):
            if isinstance(change, SpeechStarted):
                self._item_id = _new_id("item")
                fields = {"audio_start_ms": change.at, "item_id": self._item_id}
                self._emit("input_audio_buffer.speech_started", **fields)
            elif isinstance(change, SpeechStopped):
                fields = {"audio_end_ms": change.at, "item_id": self._item_id}
                self._emit("input_audio_buffer.speech_stopped", **fields)
                self._begin_turn(change.samples)

    async def _commit(self, _: BareEvent) -> None:
        self._begin_turn(self._sound.commit())

    async def _clear(self, _: BareEvent) -> None:
        self._sound.clear()
        self._item_id = ""
        self._emit("input_audio_buffer.cleared")

    # --- turns ---

    def _begin_turn(self, samples: bytes) -> None:
        """Make an item of the samples of a turn, and have it written down."""
        item_id, self._item_id = self._item_id or _new_id("item"), ""
        previous, self._last_item_id = self._last_item_id or None, item_id
        self._emit("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)
        item = {
            "id": item_id, "object": "realtime.item", "type": "message", "status": "completed",
            "role": "user", "content": [{"type": "input_audio", "transcript": None}],
        }  # fmt: skip
        for name in ("created",) if self._is_beta else ("added", "done"):
            self._emit(f"conversation.item.{name}", item=item, previous_item_id=previous)
        if self._settings.transcription is not None:
            work = self._write_down(item_id, samples, self._settings)
            task = asyncio.ensure_future(work)
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write_down(self, item_id: str, samples: bytes, settings: SessionSettings) -> None:
        """Send the text of a turn, piece by piece."""
        emit = partial(self._emit, item_id=item_id, content_index=0)
        try:
            if len(self._writing) > MAX_WAITING:
                raise Overloaded(f"{MAX_WAITING} turns are not written down yet; speak later")
            texts: list[str] = []
            file = await on_thread(THREAD, to_wav, samples, settings.format.rate)
            del samples
            with self._start(file, settings) as generation:
                while isinstance(event := await next_heard(generation), Heard):
                    for row in event.segments:
                        text = row.text if texts else row.text.lstrip()
                        texts.append(text)
                        emit(f"{_TRANSCRIPTION}.delta", delta=text)
            usage = {"type": "duration", "seconds": round(event.seconds, 3)}
            transcript = "".join(texts).strip()
            emit(f"{_TRANSCRIPTION}.completed", transcript=transcript, usage=usage)
        except Exception as error:
            problem = to_failure(error).to_object().error
            emit(f"{_TRANSCRIPTION}.failed", error=msgspec.to_builtins(problem))

    def _start(self, file: bytes, settings: SessionSettings) -> Generation:
        """Start the request for the text of a turn."""
        chosen = settings.transcription or Transcription()
        model = find_transcriber(self._models, chosen.model)
        request = Transcribe(
            file=file, language=(chosen.language or "").lower(), prompt=chosen.whole_prompt
        )
        return model.transcribe(request, self._options, is_stream=True)

    # --- events of the server ---

    def _open(self, start: int) -> InputSound:
        settings = self._settings
        form, turns = settings.format, settings.turn_detection
        return InputSound(form, turns, self._voice_model, self._memory, start)

    def _emit_session(self, name: str, verb: str) -> None:
        settings = self._settings
        shown = settings.to_beta_object() if name == _BETA_SESSION else settings.to_object()
        session = {"id": self._id, "expires_at": self._expires_at, **shown}
        self._emit(f"{name}.{verb}", session=session)

    def _emit(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "event_id": _new_id("event"), **fields}
        self._socket.send(msgspec.json.encode(event).decode())


async def _decoded(body: bytes, kind: type[Any]) -> Any:
    """Decode an event, a large one on the thread."""
    if len(body) <= SMALL:
        return decode(body, kind)
    return await on_thread(THREAD, decode, body, kind)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
