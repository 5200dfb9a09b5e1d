"""Preparation of requests: small ones on two threads, other ones in processes that can be killed.

What a child returns is completed on a third thread; on a fourth if it has images, which are
computed there, those of waiting requests together; and on a fifth if it is large, as its grammar
may take a second to build: other requests do not wait for these.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from mindspore_serving import log
from mindspore_serving.core.llm_messages import LLMRequest
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError
from mindspore_serving.isolation.children import ForkServer
from mindspore_serving.isolation.pool import JobFailure, Pool, PoolJob, PoolLimits
from mindspore_serving.llm.config import LOW_MEMORY
from mindspore_serving.llm.loader import OpenedModel
from mindspore_serving.llm.processing import child
from mindspore_serving.llm.processing.prepared import (
    PreparedEvent,
    PreparedPrompt,
    PreparedTexts,
    decode_result,
    encode_job,
    has_images,
)
from mindspore_serving.llm.processing.processor import Processor

THREADS = 2
WARM_AFTER = 1.0  # seconds: both take as long and the memory of a second tokenizer
_LARGE_ANSWER = 64 * 1024  # bytes of what a child returns: its grammar, or many tokens
BATCH_BYTES = 16 << 20  # of requests whose images are computed together
FILE_OPTIONS = (
    "mmproj", "max_images", "max_image_bytes", "max_image_pixels", "image_hosts",
    "preparation_timeout", "max_videos", "max_video_seconds", "max_video_frames", "max_documents",
    "max_document_pages", "max_file_bytes", "max_audios", "max_audio_seconds",
)  # fmt: skip

Prepared = PreparedPrompt | PreparedTexts | PreparedEvent | None
OnPrepared = Callable[[Prepared], None]


@dataclass(slots=True)
class _Unseen:
    """A request with images that were read and are not computed yet."""

    request_id: str
    take: OnPrepared
    answer: bytes | JobFailure
    context: Context  # of its log lines

    @property
    def num_bytes(self) -> int:
        return len(self.answer) if isinstance(self.answer, bytes) else 0


class Preparation:
    """Prepares requests to one model.  The thread that makes it must live as long as it does.

    Args:
        opened: the model.
        card: of the model.
        processor: of the model, for what is done in this process.
        fail: called on any thread with a request's id and why it cannot be prepared.
    """

    def __init__(
        self,
        opened: OpenedModel,
        card: ModelCard,
        processor: Processor,
        fail: Callable[[str, ServingError], None],
    ) -> None:
        self._processor = processor
        self._fail = fail
        self._threads = ThreadPoolExecutor(THREADS, "prepare")
        self._completing_thread = ThreadPoolExecutor(1, "complete")  # builds grammars
        self._image_thread = ThreadPoolExecutor(1, "see")  # computes images
        self._large_thread = ThreadPoolExecutor(1, "large")  # builds large grammars
        self._unseen: deque[_Unseen] = deque()
        self._lock = threading.Lock()
        self._jobs: dict[str, PoolJob | None] = {}
        self._pool: Pool | None = None
        self._open_pool: Callable[[], Pool] | None = None
        if opened.tokenizer is not None:  # else nothing takes time
            limits = PoolLimits(
                seconds=opened.config.preparation_timeout, memory=opened.config.preparation_memory
            )
            config = {name: getattr(opened.config, name) for name in FILE_OPTIONS}
            setup = msgspec.msgpack.encode(
                child.ProcessorSetup(str(opened.directory.absolute()), card, config)
            )
            server = ForkServer(child.MODULE, lambda: setup)
            self._open_pool = partial(Pool, server, child.PREPARE, limits)
        self._closing = threading.Event()
        if opened.config.memory != LOW_MEMORY:
            threading.Thread(target=self._warm, name="warm preparation", daemon=True).start()

    def start(self, request_id: str, request: LLMRequest, take: OnPrepared) -> None:
        """Call `take` on one of the threads with what a child process has read of `request`.

        None if nothing was read, because reading it takes no time.
        """
        self._jobs[request_id] = None
        begin = partial(self._begin, request_id, request, take)
        # In this context, log lines begin with the request's id.
        self._threads.submit(copy_context().run, self._guarded, request_id, begin)

    def cancel(self, request_id: str) -> None:
        """Stop preparing a request, whose client has left."""
        with self._lock:
            job = self._jobs.pop(request_id, None)
        if job is not None and self._pool is not None:
            self._pool.cancel(job)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            pool = self._pool
        if pool is not None:
            pool.close()
        rest = (self._completing_thread, self._image_thread, self._large_thread)
        for threads in (self._threads, *rest):
            threads.shutdown(wait=False, cancel_futures=True)

    def _warm(self) -> None:
        """Start the processes, and load the grammar compiler, once the first answer has begun."""
        if self._closing.wait(WARM_AFTER):
            return
        with self._lock:
            self._find_pool()
        try:
            self._processor.warm()
        except Exception as error:  # raised again for a request with a grammar
            log.warning("grammars cannot be used: %s", error)

    def _begin(self, request_id: str, request: LLMRequest, take: OnPrepared) -> None:
        if request_id not in self._jobs:
            return  # cancelled while it waited for a thread
        if self._open_pool is None or self._processor.is_quick(request):
            self._finish(request_id, take, None)
            return

        context = copy_context()

        def done(answer: bytes | JobFailure) -> None:
            if has_images(request):
                self._unseen.append(_Unseen(request_id, take, answer, context))
                self._image_thread.submit(self._see)
                return
            end = partial(self._end, request_id, take, answer)
            is_large = isinstance(answer, bytes) and len(answer) > _LARGE_ANSWER
            threads = self._large_thread if is_large else self._completing_thread
            threads.submit(context.run, self._guarded, request_id, end)

        job = encode_job(request, log.request_id.get())
        with self._lock:
            pool = self._find_pool()
            if request_id in self._jobs and pool is not None:
                self._jobs[request_id] = pool.submit(job, done)

    def _find_pool(self) -> Pool | None:
        """Return the pool, started if need be; None after `close`.  Called with the lock."""
        if self._pool is None and self._open_pool is not None and not self._closing.is_set():
            self._pool = self._open_pool()
        return self._pool

    def _see(self) -> None:
        """Compute the images of the first requests that wait for this, and complete these."""
        batch: list[tuple[_Unseen, PreparedPrompt]] = []
        for request in self._take_unseen():
            self._run(request, partial(self._read_unseen, request, batch))
        if not batch:
            return
        try:
            results = self._processor.see([prompt for _, prompt in batch])
        except Exception:
            log.error("computing images", exc_info=True)
            results = [ServingError("the images could not be computed; see the log")] * len(batch)
        for (request, _), seen in zip(batch, results, strict=True):
            if isinstance(seen, ServingError):
                self._run(request, partial(_raise, seen))
            else:
                self._run(request, partial(self._finish, request.request_id, request.take, seen))

    def _take_unseen(self) -> list[_Unseen]:
        """Return the first requests in the queue, of `BATCH_BYTES` together, or the first alone."""
        requests, size = list[_Unseen](), 0
        while self._unseen and (not requests or size + self._unseen[0].num_bytes <= BATCH_BYTES):
            requests.append(self._unseen.popleft())
            size += requests[-1].num_bytes
        return requests

    def _read_unseen(self, request: _Unseen, batch: list[tuple[_Unseen, PreparedPrompt]]) -> None:
        """Add a request to `batch`, unless it was cancelled, or finish it if it has no images."""
        if request.request_id not in self._jobs:
            return
        read = self._decode(request.answer)
        if isinstance(read, PreparedPrompt) and read.images:
            batch.append((request, read))
        else:
            self._finish(request.request_id, request.take, read)

    def _run(self, request: _Unseen, work: Callable[[], None]) -> None:
        request.context.run(self._guarded, request.request_id, work)

    def _end(self, request_id: str, take: OnPrepared, answer: bytes | JobFailure) -> None:
        self._finish(request_id, take, self._decode(answer))

    def _decode(self, answer: bytes | JobFailure) -> Prepared:
        if isinstance(answer, JobFailure):
            raise self._to_error(answer)
        return decode_result(answer)

    def _finish(self, request_id: str, take: OnPrepared, read: Prepared) -> None:
        with self._lock:
            if request_id not in self._jobs:
                return
            del self._jobs[request_id]
        take(read)

    def _guarded(self, request_id: str, work: Callable[[], None]) -> None:
        try:
            work()
        except ServingError as error:
            self._fail(request_id, error)
        except Exception:
            log.error("preparing a request", exc_info=True)
            failure = ServingError("the request could not be prepared; see the log")
            self._fail(request_id, failure)

    def _to_error(self, failure: JobFailure) -> ServingError:
        assert self._pool is not None
        limits = self._pool.limits
        limit = {
            JobFailure.TIME: f", more than {limits.seconds:g} s",
            JobFailure.DEATH: f", more than {limits.memory >> 20} MiB",
        }.get(failure, "")
        text = f"preparing the request {failure.value}{limit}"
        kinds: dict[JobFailure, Any] = {
            JobFailure.CROWDED: Overloaded,
            JobFailure.LOST: ServingError,
        }
        error: ServingError = kinds.get(failure, InvalidInputs)(text)
        return error


def _raise(error: ServingError) -> None:
    raise error
