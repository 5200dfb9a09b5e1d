"""A worker's language model: takes asks from the worker's thread, gives events back to it.

Asks are prepared (template, tokens, grammar) in a small pool, computed by the step loop, and told
on the worker's thread again, when `collect` is called.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.core.llm_messages import (
    Detokenize,
    Detokenized,
    Embed,
    Event,
    Generate,
    LLMRequest,
    Tokenize,
    to_refused,
)
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.loader import Opened
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.serving.embedding import EmbedAnswer
from mindspore_serving.llm.serving.engine_loop import EngineLoop
from mindspore_serving.llm.serving.generation import GenerateAnswer

Sink: TypeAlias = Callable[[list[Event] | ServingError, bool], None]
"""Is told events, or that the ask failed, and whether that was the last."""

PREPARE_THREADS = 2


class Answering:
    """Owns the step loop of one model.

    Args:
        opened: the model; its engine belongs to the loop from now on.
        wake: called from any thread when `collect` has something to tell.
    """

    def __init__(self, opened: Opened, wake: Callable[[], None]) -> None:
        self.card = opened.card()
        self.stats: EngineStats | None = None  # the newest numbers
        self._wake = wake
        self._tokenizer = opened.tokenizer
        self._teller = OutputProcessor(opened.tokenizer)
        self._preparer = Processor(opened.tokenizer, opened.chat_template, self.card)
        self._pool = ThreadPoolExecutor(PREPARE_THREADS, "prepare")
        self._lock = threading.Lock()  # makes "not cancelled, so post" one thing
        self._open: dict[str, tuple[Any, Sink]] = {}
        self._ids = count(1)
        self._outbox: deque[tuple[str, Any]] = deque()
        self._problem: BaseException | None = None
        self._has_ended = False
        self._loop = EngineLoop(opened.engine, self._put, self._put_stats, self._put_end)
        self._loop.start()
        self._pool.submit(self._warm)

    @property
    def num_open(self) -> int:
        """Asks that are not answered in full."""
        return len(self._open)

    def accept(self, ask: LLMRequest, sink: Sink) -> str:
        """Begin to answer; `sink` is called by `collect` later.  The ask's id, to `cancel` it."""
        ask_id = str(next(self._ids))
        answer: Any = None
        if isinstance(ask, Generate):
            answer = GenerateAnswer(ask_id, ask, self._teller)
        elif isinstance(ask, Embed):
            answer = EmbedAnswer(ask_id, len(ask.prompts))
        self._open[ask_id] = (answer, sink)
        self._pool.submit(self._prepare, ask_id, ask, answer)
        return ask_id

    def cancel(self, ask_id: str) -> None:
        """Nobody waits any more: the next step frees what the ask has; its sink is not called."""
        with self._lock:
            answer, _ = self._open.pop(ask_id, (None, None))
        if answer is not None:
            for request_id in answer.request_ids:
                self._loop.post(request_id, _aborting(request_id))

    def collect(self) -> None:
        """Tell the sinks what came since.  Raises RuntimeError if the step loop broke."""
        outbox = self._outbox
        told: dict[str, list[tuple[str, Any]]] = {}
        while outbox:
            request_id, output = outbox.popleft()
            ask_id = request_id.partition("/")[0]
            if ask_id in self._open:
                told.setdefault(ask_id, []).append((request_id, output))
        for ask_id, outputs in told.items():
            self._tell(ask_id, outputs)
        if self._problem is not None:
            raise RuntimeError(f"the step loop broke: {self._problem!r}") from self._problem

    def close(self) -> None:
        """End the threads and free the model."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._loop.close()

    # --- in the pool ------------------------------------------------------------------------

    def _warm(self) -> None:
        try:
            self._preparer.warm()
        except Exception as error:  # told again to whoever asks for a grammar
            log.warning("there will be no grammars: %s", error)

    def _prepare(self, ask_id: str, ask: LLMRequest, answer: Any) -> None:
        if ask_id not in self._open:
            return  # cancelled while it waited for a thread
        try:
            if isinstance(ask, Tokenize):
                self._put([(ask_id, self._preparer.tokenize(ask, self._teller))])
            elif isinstance(ask, Detokenize):
                self._put([(ask_id, Detokenized(self._preparer.detokenize(ask)))])
            else:
                commands = answer.prepare(ask, self._preparer)
                with self._lock:
                    if ask_id in self._open:
                        for request_id, command in commands:
                            self._loop.post(request_id, command)
        except ServingError as error:
            self._put([(ask_id, error)])
        except Exception:
            log.error("preparing a request", exc_info=True)
            self._put([(ask_id, ServingError("the request could not be prepared; see the log"))])

    # --- on any thread ------------------------------------------------------------------------

    def _put(self, outputs: Any) -> None:
        self._outbox.extend(outputs)
        self._wake()

    def _put_stats(self, stats: EngineStats) -> None:
        self.stats = stats
        self._wake()

    def _put_end(self, problem: BaseException | None) -> None:
        self._problem = problem
        self._wake()

    # --- on the worker's thread ---------------------------------------------------------------

    def _tell(self, ask_id: str, outputs: list[tuple[str, Any]]) -> None:
        answer, sink = self._open[ask_id]
        events: list[Event] = []
        for request_id, output in outputs:
            if isinstance(output, ServingError):
                self._end_early(ask_id, output, sink)
                return
            if answer is None:
                events.append(output)
            else:
                events += answer.take(request_id, output)
        is_last = answer is None or answer.is_done
        if is_last:
            del self._open[ask_id]
        if events or is_last:
            sink(events, is_last)

    def _end_early(self, ask_id: str, error: ServingError, sink: Sink) -> None:
        self.cancel(ask_id)
        refused = to_refused(error)
        sink([refused] if refused else error, True)


def _aborting(request_id: str) -> Callable[[Any], None]:
    def abort(engine: Any) -> None:
        engine.abort(request_id)

    return abort
