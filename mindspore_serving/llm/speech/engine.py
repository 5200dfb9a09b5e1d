"""A model of speech in a worker: requests from any thread, events to sinks.

Does for recordings what `serving.async_engine` does for prompts.  Files are decoded in child
processes; one thread cuts the recordings into pieces and writes their texts, those of all requests
together, a piece of each request in turn.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from mindspore_serving import log
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.core.speech_messages import Heard, Transcribe, Transcribed
from mindspore_serving.errors import Overloaded, ServingError
from mindspore_serving.isolation.pool import JobFailure, PoolJob
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.options import check_speech
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.speech.batch import SpeechBatch
from mindspore_serving.llm.speech.decoding_pool import (
    MAX_SOUND,
    MAX_WAITING,
    open_pool,
    samples_of,
)
from mindspore_serving.llm.speech.fields import check_fields
from mindspore_serving.llm.speech.frames import FrameBatch, FrameRunner
from mindspore_serving.llm.speech.models import SpeechModel
from mindspore_serving.llm.speech.request import SpeechRequest
from mindspore_serving.llm.speech.runner import SpeechRunner, row_bytes
from mindspore_serving.llm.speech.settings import open_speech_model
from mindspore_serving.llm.speech.sound_engine import SoundEngine
from mindspore_serving.llm.speech.transducer import TransducerRunner

MAX_ROWS = 16  # pieces in a step by default: more take memory and are hardly faster
_MEMORY_PART = 0.12  # of the memory, for keys and values


class SpeechEngine(SoundEngine):
    """Owner of a model of speech.

    Args:
        directory: of the model.
        config: options.
        wake: called from any thread when `collect` has events to deliver.

    Raises:
        StartError: an option does not apply, or a file is missing, broken or contradicts another.
    """

    kind, does = Transcribe, "transcribes speech"

    def __init__(self, directory: str, config: EngineConfig, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        check_speech(config)
        self._model = open_speech_model(directory)
        self._runner, self._batch = _open(self._model, config)
        self._config = config
        self.card = _card(Path(directory), self._model, self._runner, config)
        self._waiting: deque[SpeechRequest] = deque()  # with pieces that have not begun
        self._running: dict[str, SpeechRequest] = {}
        self._pool = open_pool(config)
        self._start()

    @property
    def stats(self) -> EngineStats:
        """Counters; pieces are sequences."""
        batch = self._batch
        return EngineStats(
            num_running=batch.num_running,
            num_waiting=len(self._waiting),
            num_cache_bytes=self._runner.num_bytes,
            num_cache_bytes_limit=self._runner.max_bytes,
            num_steps=batch.num_steps,
            num_prompt_tokens=batch.num_prompt,
            num_generated_tokens=batch.num_generated,
        )

    def _submit(self, request_id: str, request: Transcribe) -> PoolJob:
        self._check(request)
        return self._pool.submit(request.file, lambda answer: self._take_sound(request_id, answer))

    def _free(self) -> None:
        self._runner.close()

    def _check(self, request: Transcribe) -> None:
        """Raise InvalidField or Overloaded for a request that is not started."""
        limit = self._config.max_num_waiting or MAX_WAITING
        if len(self._open) > limit:
            raise Overloaded(f"{limit} recordings are waiting, the most; try again")
        check_fields(request, self._model, self._runner.num_rows)

    # --- on a thread of the pool --------------------------------------------------------------

    def _take_sound(self, request_id: str, answer: bytes | JobFailure) -> None:
        entry = self._open.get(request_id)
        if entry is None:
            return
        try:
            samples = samples_of(answer)
            body = msgspec.structs.replace(entry.body, file=b"")
            request = SpeechRequest(request_id, body, samples, self._model)
            entry.body = body  # frees the file
            entry.request = request
            with self._changed:
                held = sum(other.num_bytes for other in self._running.values())
                if held and held + request.num_bytes > MAX_SOUND:
                    raise Overloaded("too many recordings are in memory; try again")
                self._running[request_id] = request
                self._waiting.append(request)
                self._changed.notify()
        except ServingError as error:
            self._put(request_id, error, True)
        if request_id not in self._open and entry.request is not None:
            entry.request.is_cancelled = True  # it was cancelled meanwhile

    # --- on the thread that computes ----------------------------------------------------------

    def _wait(self) -> bool:
        """Wait for work; return whether there is some, False at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closing or self._running or self._batch.num_running
            )
            cancelled = [name for name, row in self._running.items() if row.is_cancelled]
            for name in cancelled:
                request = self._running.pop(name)
                if request in self._waiting:
                    self._waiting.remove(request)
            return not self._is_closing

    def _turn(self) -> None:
        """Begin a piece if there is room, and compute a step."""
        request = self._next_waiting()
        try:
            if request is not None:
                self._batch.begin(request)
            self._batch.step()
        except ServingError as error:
            log.error("a step of speech failed: %s", error)
            self._batch.clear()
            self._fail_all(error)
        self._deliver()

    def _next_waiting(self) -> SpeechRequest | None:
        with self._changed:
            while self._waiting:
                request = self._waiting[0]
                is_open = request.is_waiting and not request.is_cancelled
                if is_open and not self._batch.has_room(request.body.beam_size):
                    return None
                self._waiting.popleft()
                if is_open:
                    self._waiting.append(request)  # the others have their turn first
                    return request
        return None

    def _deliver(self) -> None:
        with self._changed:
            running = list(self._running.items())
        for request_id, request in running:
            segments = request.take()
            if segments:
                self._put(request_id, [Heard(tuple(segments))], False)
            if request.is_waiting and request not in self._waiting:
                with self._changed:  # a text has left the rest of its piece
                    self._waiting.append(request)
            if request.is_done:
                with self._changed:
                    self._running.pop(request_id, None)
                self._finish(request)

    def _finish(self, request: SpeechRequest) -> None:
        self._recorder.answers[FinishReason.STOP.value] += 1
        last = Transcribed(
            request.language, request.seconds, request.num_prompt, request.num_generated
        )
        self._put(request.id, [last], True)

    def _fail_all(self, error: ServingError) -> None:
        with self._changed:
            failed = list(self._running)
            self._running.clear()
            self._waiting.clear()
        for request_id in failed:
            self._put(request_id, error, True)


def _open(
    model: SpeechModel, config: EngineConfig
) -> tuple[SpeechRunner | FrameRunner, SpeechBatch | FrameBatch]:
    if not model.family.samples_texts:
        frames = (TransducerRunner if model.sizes.predictor else FrameRunner)(model, config)
        return frames, FrameBatch(frames, model)
    runner = SpeechRunner(model, config, _num_rows(model, config))
    return runner, SpeechBatch(runner, model)


def _num_rows(model: SpeechModel, config: EngineConfig) -> int:
    """Return how many pieces a step may have, by the options and the memory."""
    count = config.max_num_seqs if config.is_set("max_num_seqs") else MAX_ROWS
    budget = config.kv_cache_memory or int(read_main_memory().total * _MEMORY_PART)
    return max(1, min(count, budget // row_bytes(model.sizes)))


def _card(
    directory: Path,
    model: SpeechModel,
    runner: SpeechRunner | FrameRunner,
    config: EngineConfig,
) -> ModelCard:
    rows = runner.num_rows
    return ModelCard(
        architecture=model.family.architecture,
        runtime="openvino",
        dtype=runner.precision,
        quantization=config.quantization or "",
        max_model_len=model.sizes.max_tokens or model.sizes.num_frames,
        vocab_size=model.sizes.vocab_size,
        can_generate=False,
        can_transcribe=True,
        embedding_size=0,
        has_chat_template=False,
        tool_format="",
        reasoning_format="",
        adapters=(),
        eos_ids=(model.tokens.end,),
        num_blocks=0,
        block_size=0,
        max_num_seqs=rows,
        max_num_batched_tokens=rows,
        max_num_waiting=config.max_num_waiting or MAX_WAITING,
        created=int(time.time()),
        languages=model.languages,
        summary=f"{directory.name} in {runner.precision}, {runner.room}",
    )
