"""A master with real worker processes, over servables that a test writes."""

import asyncio
import json
import textwrap

from mindspore_serving.cluster.local import LocalLauncher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.service import Request
from mindspore_serving.frontends.replies import infer
from mindspore_serving.master.master import Master
from tests.declaring import METHOD
from tests.waiting import PATIENCE, until

HEAD = f"""
import os
import time
import numpy as np
from mindspore_serving.server import register
{METHOD}"""


class Server:
    """A master, its servables, and short ways to ask it."""

    def __init__(self, directory):
        self.directory = directory
        self.marker = directory / "tiny" / "marker"
        self.all_gone = asyncio.Event()
        self.master = Master(LocalLauncher(), self.all_gone.set)

    def write(self, name, body):
        (self.directory / name).mkdir(exist_ok=True)
        (self.directory / name / "servable_config.py").write_text(
            HEAD + METHOD + textwrap.dedent(body)
        )

    def deployment(self, name="tiny", **options):
        return Deployment(str(self.directory), name, **options)

    async def deploy(self, *deployments):
        await asyncio.wait_for(self.master.deploy(deployments), PATIENCE)

    async def ask(self, method, *instances, servable="tiny", timeout=PATIENCE):
        """The reply to one request of these instances."""
        body = json.dumps({"instances": list(instances)}).encode()
        request = Request(servable, method, 0, "ms_json", body, timeout=timeout)
        return await infer(self.master.dispatcher, request)

    async def outputs(self, method, *instances, **options):
        reply = await self.ask(method, *instances, **options)
        assert reply.failure is None, reply.failure
        if len(instances) > 1 or not reply.instances[0].startswith(b'{"instances"'):
            return [json.loads(text) for text in reply.instances]
        return json.loads(reply.instances[0])["instances"]

    async def pids(self, count):
        """The workers that answer `count` instances shared among them."""
        return {one["y"] for one in await self.outputs("pid", *[{"x": 0}] * count)}

    async def until(self, condition):
        await until(condition)
