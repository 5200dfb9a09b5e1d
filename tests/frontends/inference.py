"""The one fake of `core.service.Inference`: it keeps requests, and the test has them answered."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from mindspore_serving.core.service import Reply, Request
from tests.waiting import PATIENCE


class FakeCall:
    """One submitted request, as its front end sees it."""

    def __init__(
        self, inference: "FakeInference", request: Request, on_reply: Callable[[Reply], None]
    ) -> None:
        self._inference = inference
        self._loop = asyncio.get_running_loop()
        self.request = request
        self.on_reply = on_reply  # on the loop's thread only
        self.num_cancels = 0

    @property
    def is_cancelled(self) -> bool:
        return self.num_cancels > 0

    def reply(self, *replies: Reply) -> None:
        """From any thread; a front end never gets a reply before `submit` has returned."""
        for reply in replies:
            self._loop.call_soon_threadsafe(self.on_reply, reply)

    def cancel(self) -> None:
        with self._inference.changed:
            self.num_cancels += 1
            self._inference.changed.notify_all()


class FakeInference:
    """Answers nothing by itself: see `received`."""

    make_call: Callable[..., Any] = FakeCall
    is_refusing = False
    refusal: Callable[..., Any] = lambda *_: None

    def __init__(self) -> None:
        self.calls: list[Any] = []  # of the class that `make_call` is
        self.changed = threading.Condition()

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> Any:
        call = self.make_call(self, request, on_reply)
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()
        self.received(call)
        return call

    def received(self, call: Any) -> None:
        """What is done with a call at once, on the loop's thread."""

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until it is true of the calls; from another thread than the loop's."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE), self.calls

    @property
    def num_cancelled(self) -> int:
        return sum(call.num_cancels for call in self.calls)
