"""Requests of methods that stream: each goes to the worker that has the fewest by then."""

import asyncio

from mindspore_serving.core.deployment import BatchPolicy, Deployment
from mindspore_serving.core.service import Request
from mindspore_serving.dispatch.dispatcher import Dispatcher
from mindspore_serving.dispatch.registry import Registry
from mindspore_serving.ipc.messages import MethodReport


class Worker:
    """In place of a link: counts what it is sent, never answers."""

    def __init__(self, busy=0):
        self.num_unpaced = busy

    def send_work(self, parts, now, *, is_paced):
        assert not is_paced
        self.num_unpaced += len(parts)


async def share(num_requests, *workers):
    registry = Registry()
    dispatcher = Dispatcher(registry)
    report = MethodReport("m", ["x"], ["y"], 1, True, False, streams=True)
    for worker in workers:
        registry.add_worker(Deployment("d", "s", batching=BatchPolicy()), 1, [report], worker)
    for _ in range(num_requests):
        body = b'{"instances":[{"x":1}]}'
        dispatcher.submit(Request("s", "m", 0, "ms_json", body, is_stream=True), print)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return [worker.num_unpaced for worker in workers]


async def test_requests_of_one_turn_are_shared_evenly():
    assert await share(8, Worker(), Worker()) == [4, 4]
    assert await share(9, Worker(), Worker(), Worker()) == [3, 3, 3]


async def test_who_has_fewer_gets_more():
    assert await share(6, Worker(5), Worker(1)) == [6, 6]
