"""Deployments that come and go while others serve: real worker processes."""

import asyncio
import os
from dataclasses import replace

import pytest

from mindspore_serving.errors import NotFound, ServableUnavailable, StartError
from tests.master.mastered import Server
from tests.waiting import PATIENCE

ANSWERING = """
def answer(x):
    while os.path.exists(os.path.join(os.path.dirname(__file__), "hold")):
        time.sleep(0.01)
    return {answer}

@register.register_method(output_names=["y"])
def ask(x):
    return register.add_stage(answer, x, outputs_count=1)
"""


def answering(answer):
    return ANSWERING.replace("{answer}", repr(answer))


@pytest.fixture
async def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Server(tmp_path)
    made.write("one", answering(1))
    made.write("two", answering(2))
    yield made
    await asyncio.wait_for(made.master.stop(grace=5.0), PATIENCE)


async def roll(server, new=(), old=(), seconds=PATIENCE):
    await asyncio.wait_for(server.master.roll(new, old, seconds), 2 * PATIENCE)


async def answer(server, name):
    (output,) = await server.outputs("ask", {"x": 0}, servable=name)
    return output["y"]


def hold(server, name):
    """Stages of the servable wait from now on, until the path that is returned is removed."""
    path = server.directory / name / "hold"
    path.touch()
    return path


async def held(server, name):
    """A request to the servable that runs in a worker."""
    task = asyncio.create_task(server.ask("ask", {"x": 0}, servable=name))
    await server.until(lambda: any(row["requests"]["running"] for row in rows(server, name)))
    return task


def rows(server, name):
    return [row for row in server.master.control.observe() if row["name"] == name]


async def test_a_servable_comes_while_another_serves(server):
    one, two = (server.deployment(name, num_parallel_workers=1) for name in ("one", "two"))
    await server.deploy(one)
    await roll(server, [two])
    assert [await answer(server, name) for name in ("one", "two")] == [1, 2]
    assert server.master.deployments == [one, two]


async def test_a_leaving_servable_answers_its_pending_requests(server):
    one, two = (server.deployment(name, num_parallel_workers=1) for name in ("one", "two"))
    await server.deploy(one, two)
    path = hold(server, "one")
    pending = await held(server, "one")
    leaving = asyncio.create_task(roll(server, (), [one]))
    await server.until(lambda: not rows(server, "one"))
    reply = await server.ask("ask", {"x": 0}, servable="one")
    assert isinstance(reply.failure, NotFound)
    path.unlink()
    assert (await pending).failure is None
    await leaving
    assert await answer(server, "two") == 2
    assert not server.all_gone.is_set()


async def test_requests_that_a_leaving_servable_does_not_answer_are_refused(server):
    one = server.deployment("one", num_parallel_workers=1)
    await server.deploy(one)
    path = hold(server, "one")
    pending = await held(server, "one")
    leaving = asyncio.create_task(roll(server, (), [one], seconds=0.0))
    assert isinstance((await pending).failure, ServableUnavailable)
    path.unlink()
    await leaving
    assert server.master.deployments == []


async def test_the_next_generation_takes_over_when_ready(server):
    one = server.deployment("one", num_parallel_workers=1)
    await server.deploy(one)
    path = hold(server, "one")
    pending = await held(server, "one")
    server.write("one", answering(10))
    rolling = asyncio.create_task(roll(server, [replace(one, generation=1)], [one]))
    await server.until(lambda: server.master.deployments[0].generation == 1)
    path.unlink()
    assert (await pending).instances == [b'{"y":1}']
    await rolling
    assert await answer(server, "one") == 10
    assert len(rows(server, "one")[0]["workers"]) == 1


async def test_no_request_fails_while_generations_change(server):
    one = server.deployment("one", num_parallel_workers=1)
    await server.deploy(one)
    replies, is_over = [], asyncio.Event()

    async def client():
        while not is_over.is_set():
            replies.append(await server.ask("ask", {"x": 0}, servable="one"))

    clients = [asyncio.create_task(client()) for _ in range(3)]
    for generation in (1, 2):
        server.write("one", answering(generation))
        old = server.master.deployments
        await roll(server, [replace(one, generation=generation)], old)
    is_over.set()
    await asyncio.gather(*clients)
    assert [reply.failure for reply in replies if reply.failure] == []
    assert await answer(server, "one") == 2


async def test_a_generation_that_cannot_be_loaded_changes_nothing(server):
    one = server.deployment("one", num_parallel_workers=1)
    await server.deploy(one)
    server.write("one", "raise OSError('no such thing')")
    with pytest.raises(StartError, match="no such thing"):
        await roll(server, [replace(one, generation=1)], [one])
    assert server.master.deployments == [one]
    assert await answer(server, "one") == 1
    assert server.master.control.is_ready


async def test_the_last_servable_may_leave_without_the_end_of_the_server(server):
    one = server.deployment("one", num_parallel_workers=1)
    await server.deploy(one)
    await roll(server, (), [one])
    assert not server.all_gone.is_set()
    assert not server.master.control.is_ready
    await roll(server, [one])
    assert await answer(server, "one") == 1


async def test_a_dead_worker_of_a_leaving_generation_is_replaced(server):
    one = server.deployment("one", num_parallel_workers=1)
    await server.deploy(one)
    path = hold(server, "one")
    pending = await held(server, "one")
    (old,) = rows(server, "one")[0]["workers"]
    rolling = asyncio.create_task(roll(server, [replace(one, generation=1)], [one]))
    await server.until(lambda: server.master.deployments[0].generation == 1)
    os.kill(old["pid"], 9)
    path.unlink()
    assert (await pending).instances == [b'{"y":1}']
    await rolling


async def test_a_deployment_that_cannot_start_is_dropped_unless_strict(server):
    server.write("two", "raise RuntimeError('two is broken')")
    one, two = (server.deployment(name, num_parallel_workers=1) for name in ("one", "two"))
    deploying = server.master.deploy([one, two], is_strict=False)
    ((failed, error),) = await asyncio.wait_for(deploying, PATIENCE)
    assert failed is two
    assert "two is broken" in str(error)
    assert await answer(server, "one") == 1
    assert server.master.deployments == [one]
    assert server.master.control.is_ready
    with pytest.raises(StartError, match="two is broken"):
        await asyncio.wait_for(server.master.deploy([two], is_strict=False), PATIENCE)


async def test_loading_another_servable_does_not_make_the_server_unready(server):
    one, two = (server.deployment(name, num_parallel_workers=1) for name in ("one", "two"))
    await server.deploy(one)
    path = server.directory / "two" / "hold"
    path.touch()
    server.write(
        "two", "while os.path.exists(__file__[:-18] + 'hold'): time.sleep(0.01)\n" + answering(2)
    )
    rolling = asyncio.create_task(roll(server, [two]))
    control = server.master.control
    await server.until(lambda: len(control.readiness()) == 2)
    assert control.is_ready
    assert [(row.name, row.is_ready) for row in control.readiness()] == [
        ("one", True),
        ("two", False),
    ]
    path.unlink()
    await rolling
    assert all(row.is_ready for row in control.readiness())
