"""A dispatcher with one method over workers that only keep what they are sent."""

import asyncio
import json

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import ServableUnavailable
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.ipc.status import STAGES, Running
from mindspore_serving.master.caching import CachingInference
from mindspore_serving.master.dispatcher import Dispatcher


class Worker:
    """In place of a link: keeps parts until the test answers.  `room` is for batched methods."""

    owns_models = True

    def __init__(self, room=1000):
        self.size = room
        self.sent = []  # one list of parts per message
        self.held = []
        self.cancelled = []
        self.call_replies = []
        self.num_sent = 0
        self.at = []  # the parts that it runs, as far as can be seen
        self.overdue = None
        self.end_reason = ""

    @property
    def parts(self):
        return {part.id: part for part in self.held}

    def running(self):
        ids = frozenset(part.id for part in self.at)
        return [Running(STAGES, 1.0, 0, ids)] if ids else []

    def send_work(self, parts, now, strategy):
        self.sent.append(list(parts))
        self.held += parts
        for part in parts:
            self.num_sent += 1
            part.mark_sent(self, self.num_sent, strategy, now)

    def cancel(self, part):
        self.cancelled.append(part)

    def take_parts(self):
        parts, self.held = self.held, []
        return parts

    def answer_call(self, call_id, reply, failed_at=()):
        self.call_replies.append((call_id, reply))

    @property
    def sizes(self):
        """How many parts each message had."""
        return [len(parts) for parts in self.sent]


class Window:
    """In place of a pacing window: as large as the test says."""

    def __init__(self, worker):
        self.worker = worker

    @property
    def num_in_flight(self):
        return len(self.worker.held)

    def room(self, batch_size):
        return self.worker.size - self.num_in_flight

    def limit_messages(self, most): ...
    def sent(self, parts, now): ...
    def answered(self, answers, now): ...


class Served:
    """A dispatcher with a method "m" of servable "s", and `others`, and the workers that run it."""

    def __init__(
        self,
        *workers,
        batch_size=1,
        streams=False,
        method_retry=True,
        retry=True,
        has_real_windows=False,
        others=(),
        cache=None,
        **options,
    ):
        self.dispatcher = Dispatcher()
        self.registry = self.dispatcher.registry
        self.inference = CachingInference(self.dispatcher)
        self.reports = [
            MethodReport(name, ["x"], ["y"], batch_size, method_retry, False, streams, cache=cache)
            for name in ("m", *others)
        ]
        self.deployment = Deployment("d", "s", retry=retry, **options)
        self.has_real_windows = has_real_windows
        self.replies = []
        for worker in workers:
            self.add(worker)

    def add(self, worker, card=None):
        """As the master does when `worker` has loaded the servable."""
        if not self.has_real_windows:
            self.dispatcher._batches._windows[worker] = Window(worker)
        reports = self.reports
        self.service = self.registry.add_worker(self.deployment, 1, reports, worker, card=card)

    @property
    def method(self):
        return self.service.methods["m"]

    def submit(self, count=1, timeout=None, *, is_stream=False, **changes):
        """Ask for `count` instances; the last reply is kept with the number of the request."""
        body = json.dumps({"instances": [{"x": number} for number in range(count)]}).encode()
        values = {"servable": "s", "method": "m", "body": body, **changes}
        request = Request(
            values["servable"],
            values["method"],
            0,
            "ms_json",
            values["body"],
            timeout=timeout,
            is_stream=is_stream,
            prefix=values.get("prefix", ()),
            tenant=values.get("tenant", ""),
            priority=values.get("priority", 0),
        )
        number = len(self.replies)
        self.replies.append(None)

        def keep(reply):
            self.replies[number] = reply

        return self.inference.submit(request, keep)

    def answer(self, worker, *parts, is_last=True):
        """`worker` answers `parts`, or all it holds, each instance with its own chunk."""
        parts = parts or tuple(worker.held)
        if is_last:
            worker.held = [part for part in worker.held if part not in parts]
        answers = [
            (part, Reply([bytes(chunk) for chunk in part.chunks], is_last=is_last))
            for part in parts
        ]
        parts[0].strategy.on_answers(worker, answers)

    def lose(self, worker):
        """As the master does when the process of `worker` has died."""
        self.registry.remove_worker(self.service, worker)
        self.dispatcher.on_lost(worker, "it died")

    def give_up(self, retry_after=None):
        """As the master does when no worker is expected."""
        self.service.reason = "its workers have ended"
        self.service.retry_after = retry_after
        error = ServableUnavailable(f"{self.method.label}: its workers have ended", retry_after)
        self.dispatcher.fail_waiting(self.method, error)

    def failure(self, number=0):
        return self.replies[number].failure


async def turn():
    """Let the loop do what is due; a refusal or a hand-out takes one turn."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
