"""Voices in a worker: texts to sound, sentence by sentence, those of all requests in turn."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec

import msgspec

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Event
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.core.speech_messages import Speak, SpeechEnded, Spoken
from mindspore_serving.errors import InvalidField, Overloaded, ServingError, StartError
from mindspore_serving.extras import command
from mindspore_serving.isolation.children import ForkServer
from mindspore_serving.isolation.pool import JobFailure, Pool, PoolJob, PoolLimits
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.options import check_voices
from mindspore_serving.llm.speech.sound_engine import SoundEngine, to_error
from mindspore_serving.llm.voices import child
from mindspore_serving.llm.voices.encoding import SoundEncoder, open_encoder
from mindspore_serving.llm.voices.runner import VoiceRunner, trim
from mindspore_serving.llm.voices.settings import Reading, Voices, open_voices

MAX_WAITING = 64  # texts by default
MIN_SPEED, MAX_SPEED = 0.25, 4.0
_START_SECONDS = 120.0  # for the first phonemes
_QUICK_SECONDS = 1.0  # in which texts become phonemes; a longer one waits for its like alone


@dataclass(slots=True, eq=False)
class _Text:
    """Text that is spoken: the pieces that are left, and the file so far."""

    id: str
    body: Speak
    pieces: deque[list[str]]
    encoder: SoundEncoder
    is_cancelled: bool = False
    num_samples: int = 0
    num_phonemes: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_phonemes = sum(map(len, self.pieces))


class VoiceEngine(SoundEngine):
    """Owner of a model with voices.

    Args:
        path: file of Piper, or directory.
        config: options.
        wake: called from any thread when `collect` has events to deliver.

    Raises:
        StartError: an option does not apply, a library is missing, or a file is missing or broken.
    """

    kind, does = Speak, "synthesizes speech"

    def __init__(self, path: str, config: EngineConfig, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        check_voices(config)
        self._config = config
        self._voices = open_voices(path)
        languages = self._voices.languages
        reading = self._voices.read_as(self._voices.voices[0], languages[0] if languages else "")
        if reading.language and find_spec("piper") is None:
            raise StartError(f"the phonemes of this voice need piper-tts; {command('speech')}")
        self._runner = VoiceRunner(self._voices, config.num_threads)
        self.card = _card(self._voices, config)
        self._texts: deque[_Text] = deque()  # in the order of their turns
        self._num_steps = self._num_phonemes = 0
        limits = PoolLimits(quick_seconds=_QUICK_SECONDS, max_slow=self.card.max_num_waiting or 0)
        self._pool = Pool(ForkServer(child.MODULE, lambda: b""), child.READ, limits)
        self._check_reading(reading)
        self._start()

    @property
    def stats(self) -> EngineStats:
        """Counters; sentences are steps, phonemes are tokens."""
        return EngineStats(
            num_running=min(1, len(self._texts)),
            num_waiting=max(0, self.num_open - 1),
            num_cache_bytes=0,
            num_cache_bytes_limit=0,
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_phonemes,
            num_generated_tokens=0,
        )

    def _check_reading(self, reading: Reading) -> None:
        """Turn a letter into phonemes.  Raises StartError if that cannot be done."""
        answered: Future[bytes | JobFailure] = Future()
        self._pool.submit(_to_job("a", reading), answered.set_result)
        answer = answered.result(_START_SECONDS)
        problem = answer.value if isinstance(answer, JobFailure) else ""
        try:
            rows = [] if isinstance(answer, JobFailure) else child.decode_answer(answer)
        except ServingError as error:
            rows, problem = [], str(error)
        if not rows:
            self._pool.close()
            named = f"the language {reading.language!r} of {self._voices.model.name}"
            raise StartError(f"{named} cannot be turned into phonemes: {problem}")

    def _submit(self, request_id: str, request: Speak) -> PoolJob:
        job = _to_job(request.text, self._check(request))
        return self._pool.submit(job, lambda answer: self._take_phonemes(request_id, answer))

    def _free(self) -> None:
        self._runner.close()

    def _check(self, request: Speak) -> Reading:
        """Return how a text is read.

        Raises InvalidField or Overloaded for a request that is not started.
        """
        limit = self.card.max_num_waiting or MAX_WAITING
        if len(self._open) > limit:
            raise Overloaded(f"{limit} texts are waiting, the most; try again")
        _check_text(request.text, self._config.max_speech_characters)
        voice = request.voice or self._voices.voices[0]
        if voice not in self._voices.voices:
            known = ", ".join(self._voices.voices[:100])
            raise InvalidField("voice", f"is {voice!r:.40}, expected one of {known}")
        speed = request.speed
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise InvalidField("speed", f"is {speed:g}, expected {MIN_SPEED:g} to {MAX_SPEED:g}")
        if self._runner.has_whole_speeds and speed % 1:
            raise InvalidField("speed", f"is {speed:g}, this model takes whole numbers")
        open_encoder(request.format, self._voices.rate)
        return self._voices.read_as(voice, request.language)

    # --- on a thread of the pool --------------------------------------------------------------

    def _take_phonemes(self, request_id: str, answer: bytes | JobFailure) -> None:
        entry = self._open.get(request_id)
        if entry is None:
            return
        body: Speak = entry.body
        try:
            if isinstance(answer, JobFailure):
                raise to_error(answer, "turning the text into phonemes")
            sentences = child.decode_answer(answer)
            pieces = deque(part for row in sentences for part in self._voices.split(row))
            if not pieces:
                raise InvalidField("text", "has nothing to speak, expected words of its language")
            encoder = open_encoder(body.format, self._voices.rate)
            text = entry.request = _Text(request_id, body, pieces, encoder)
            with self._changed:
                self._texts.append(text)
                self._changed.notify()
            if request_id not in self._open:
                text.is_cancelled = True  # it was cancelled meanwhile
        except ServingError as error:
            self._put(request_id, error, True)

    # --- on the thread that computes ----------------------------------------------------------

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._texts)
            return not self._is_closing

    def _turn(self) -> None:
        """Speak a sentence of the text whose turn it is."""
        with self._changed:
            text = self._texts.popleft()
        if text.is_cancelled:
            return
        try:
            spoken = self._speak(text)
        except ServingError as error:
            log.error("a sentence could not be spoken: %s", error)
            self._put(text.id, error, True)
            return
        self._put(text.id, [spoken], False)
        if text.pieces:
            with self._changed:
                self._texts.append(text)  # the others have their turn first
            return
        self._recorder.answers[FinishReason.STOP.value] += 1
        seconds = text.num_samples / self._voices.rate
        last: list[Event] = [Spoken(text.encoder.end()), SpeechEnded(seconds, text.num_phonemes)]
        self._put(text.id, last, True)

    def _speak(self, text: _Text) -> Spoken:
        piece = text.pieces.popleft()
        voice = text.body.voice or self._voices.voices[0]
        samples = self._runner.speak(piece, voice, text.body.speed)
        if self._voices.is_trimmed:
            samples = trim(samples, self._voices.rate)
        text.num_samples += len(samples)
        self._num_steps += 1
        self._num_phonemes += len(piece)
        return Spoken(text.encoder.add(samples), len(piece))


def _to_job(text: str, reading: Reading) -> bytes:
    return msgspec.msgpack.encode(child.TextJob(text, reading.language, reading.clusters))


def _check_text(text: str, limit: int) -> None:
    if not text.strip():
        raise InvalidField("text", "is empty, expected words to speak")
    if len(text) > limit:
        problem = f"has {len(text):,} characters, expected at most {limit:,}"
        raise InvalidField("text", f"{problem} (max_speech_characters): send it in parts")
    if "\0" in text:
        raise InvalidField("text", "has the character U+0000, which is not spoken")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidField("text", "has a lone surrogate, expected Unicode text") from None


def _card(voices: Voices, config: EngineConfig) -> ModelCard:
    count, rate = len(voices.voices), voices.rate
    named = voices.voices[0] if count == 1 else f"{count} voices"
    return ModelCard(
        architecture=voices.architecture,
        runtime="onnxruntime",
        dtype="f32",
        quantization="",
        max_model_len=config.max_speech_characters,
        vocab_size=len(voices.ids),
        can_generate=False,
        can_speak=True,
        voices=voices.voices,
        languages=voices.languages,
        embedding_size=0,
        has_chat_template=False,
        tool_format="",
        reasoning_format="",
        adapters=(),
        eos_ids=(),
        num_blocks=0,
        block_size=0,
        max_num_seqs=1,
        max_num_batched_tokens=voices.max_phonemes,
        max_num_waiting=config.max_num_waiting or MAX_WAITING,
        created=int(time.time()),
        summary=f"{voices.model.name} of {voices.architecture}: {named}, {rate:,} samples a second",
    )
