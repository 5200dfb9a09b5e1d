"""A download that several clients follow: shared steps, and its end when the last one leaves."""

import asyncio

import pytest

from mindspore_serving.core.client_models import PullProgress
from mindspore_serving.errors import NotFound
from mindspore_serving.server.downloads.job import PullJob


def steps_of(progress):
    return progress.status, progress.completed


def test_followers_see_the_same_job():
    async def scenario():
        gate = asyncio.Event()

        async def work(job):
            await gate.wait()
            job.show(PullProgress("pulling", "sha256:1", 10, 10))
            await asyncio.sleep(0)

        job = PullJob(work)
        first, second = job.follow(), job.follow()
        assert steps_of(await anext(first)) == steps_of(await anext(second))
        gate.set()
        assert [steps_of(step) async for step in first] == [("pulling", 10)]

    asyncio.run(scenario())


def test_the_last_follower_that_leaves_stops_a_download():
    async def scenario():
        job = PullJob(lambda job: asyncio.sleep(60))
        first, second = job.follow(), job.follow()
        await anext(first)
        await anext(second)
        await first.aclose()
        await asyncio.sleep(0)
        assert not job.task.done()
        await second.aclose()
        with pytest.raises(asyncio.CancelledError):
            await job.task
        assert job.is_stopped

    asyncio.run(scenario())


def test_loading_goes_on_without_followers():
    async def scenario():
        gate = asyncio.Event()

        async def work(job):
            job.is_loading = True
            await gate.wait()

        job = PullJob(work)
        follower = job.follow()
        await anext(follower)
        await asyncio.sleep(0)
        await follower.aclose()
        assert not job.is_stopped
        gate.set()
        await job.task

    asyncio.run(scenario())


def test_a_follower_gets_the_error_of_the_job():
    async def scenario():
        async def work(job):
            raise NotFound("no such model")

        follower = PullJob(work).follow()
        await anext(follower)
        with pytest.raises(NotFound, match="no such model"):
            await anext(follower)

    asyncio.run(scenario())
