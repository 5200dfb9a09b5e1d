"""Servables that share a device take turns."""

import json

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.ipc.messages import RequestPart, WorkerCall
from tests.master.served import Served, Window, Worker, turn


def serve(*needs, room=2, **options):
    """A server of servables "s", "t" ... with these needs, and the worker of each."""
    workers = [Worker(room=room) for _ in needs]
    served = Served(workers[0], resources=needs[0], **options)
    for name, worker, need in zip("tuv", workers[1:], needs[1:], strict=False):
        add(served, name, worker, need)
    return served, workers


def add(served, name, worker, needs):
    served.dispatcher._batches._windows[worker] = Window(worker)
    deployment = Deployment("d", name, resources=needs)
    return served.registry.add_worker(deployment, 1, served.reports, worker)


def holding(workers):
    return [len(worker.held) for worker in workers]


async def test_workers_that_need_a_device_take_turns():
    served, workers = serve({"npu": 1}, {"npu": 1})
    for _ in range(4):
        served.submit()
        served.submit(servable="t")
    order = []
    for _ in range(8):
        await turn()
        counts = holding(workers)
        assert sorted(counts)[0] == 0  # never both at once
        if not any(counts):
            break
        worker = workers[counts.index(max(counts))]
        order.append((workers.index(worker), max(counts)))
        served.answer(worker)
    assert order == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert all(reply is not None and reply.failure is None for reply in served.replies)


async def test_a_worker_gets_more_work_while_no_other_waits():
    served, (worker, _) = serve({"npu": 1}, {"npu": 1})
    served.submit()
    await turn()
    served.submit()
    await turn()
    assert len(worker.held) == 2


async def test_a_count_lets_as_many_run_at_once():
    served, workers = serve({"npu": 1}, {"npu": 1}, {"npu": 1}, resource_counts={"npu": 2})
    for name in "stu":
        served.submit(servable=name)
    await turn()
    assert holding(workers) == [1, 1, 0]
    served.answer(workers[1])
    await turn()
    assert holding(workers) == [1, 0, 1]


async def test_servables_with_other_resources_do_not_wait():
    served, workers = serve({"npu0": 1}, {"npu1": 1}, {})
    for name in "stu":
        served.submit(servable=name)
    await turn()
    assert holding(workers) == [1, 1, 1]


async def test_a_servable_that_needs_more_is_not_overtaken_by_smaller_servables():
    served, workers = serve(
        {"memory": 2}, {"memory": 3}, {"memory": 1}, resource_counts={"memory": 4}
    )
    for name in "stu":
        served.submit(servable=name)
    await turn()
    assert holding(workers) == [1, 0, 0]  # "u" would fit, but "t" waits longer
    served.answer(workers[0])
    await turn()
    assert holding(workers) == [0, 1, 1]


async def test_the_resources_of_a_dead_worker_are_released():
    served, workers = serve({"npu": 1}, {"npu": 1})
    served.submit()
    served.submit(servable="t")
    await turn()
    served.lose(workers[0])
    served.dispatcher._batches.dispatch()
    assert holding(workers[1:]) == [1]


async def test_a_cancelled_request_lets_other_servables_run():
    served, workers = serve({"npu": 1}, {"npu": 1}, {"npu": 1})
    served.submit()
    waiting = served.submit(servable="t")
    served.submit(servable="u")
    await turn()
    waiting.cancel()
    served.answer(workers[0])
    await turn()
    assert holding(workers) == [0, 0, 1]


async def test_a_servable_without_workers_does_not_keep_other_servables_waiting():
    served, workers = serve({"npu": 1}, {"npu": 1})
    service = next(each for each in served.registry if each.name == "t")
    served.registry.remove_worker(service, workers[1])
    served.submit(servable="t")
    served.submit()
    await turn()
    assert holding(workers) == [1, 0]


async def test_workers_without_models_need_no_device():
    served, (owner, other) = serve({"npu": 1}, {"npu": 1})
    extra = Worker()
    extra.owns_models = False
    served.add(extra)
    served.submit(servable="t")
    await turn()
    served.submit()
    await turn()
    assert (len(owner.held), len(other.held), len(extra.held)) == (0, 1, 1)


async def test_a_call_of_a_worker_does_not_wait_for_resources_of_its_caller():
    served, (caller, callee) = serve({"npu": 1}, {"npu": 1})
    served.submit()
    await turn()
    chunk = json.dumps({"x": 1}).encode()
    part = RequestPart(7, "m", "ms_json_items", [chunk], None)
    served.dispatcher.on_call(caller, WorkerCall("t", 0, part))
    await turn()
    assert len(callee.held) == 1
