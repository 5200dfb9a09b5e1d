"""Other machines that run workers: the server on which they join, and those of a Ray cluster."""

import ssl

from mindspore_serving.aio import FunctionThread
from mindspore_serving.cluster.node_server import NodeServer, Security
from mindspore_serving.cluster.ray_machines import MasterEndpoint, RayMachines, RayPlan
from mindspore_serving.cluster.spreading import SpreadingLauncher
from mindspore_serving.errors import AlreadyRunning, InvalidInputs
from mindspore_serving.frontends import address as addresses
from mindspore_serving.tls import Certificates


class Machines:
    """The machines over which `launcher` spreads workers."""

    def __init__(self, launcher: SpreadingLauncher) -> None:
        self._launcher = launcher
        self._nodes: NodeServer | None = None
        self._endpoint: MasterEndpoint | None = None  # the address on which nodes join
        self._ray: RayMachines | None = None
        self._ray_thread: FunctionThread | None = (
            None  # outside the main thread Ray sets no signals
        )

    async def start_nodes(
        self,
        where: addresses.Address,
        tls: Certificates | None,
        token: str,
        local_slots: int | None,
    ) -> None:
        """Listen for nodes.  Raises StartError if the address cannot be bound."""
        if self._nodes is not None:
            raise AlreadyRunning("Serving Error: the node server is already running")
        first = None if tls is None else tls.context

        def context() -> ssl.SSLContext | None:  # actors of Ray trust the first certificate only
            return first if tls is None or self._ray is not None else tls.context

        listener = addresses.listen(where, "node server")
        self._launcher.here.slots = local_slots
        self._launcher.host = where.host
        self._nodes = NodeServer(listener, Security(context, token), self._launcher)
        self._nodes.start()
        certificate = tls.pem.certificate.decode("ascii") if tls is not None else ""
        self._endpoint = MasterEndpoint(where.host, where.port, token, certificate)

    async def start_ray(self, plan: RayPlan) -> None:
        """Start actors on machines of a Ray cluster, which join.  Raises StartError."""
        if self._endpoint is None or not self._endpoint.token:
            raise InvalidInputs(
                "Machines of a Ray cluster join by a token: call start_node_server with a token "
                "before (serve: --worker-address and --token-file)"
            )
        if self._ray is not None:
            raise AlreadyRunning("Serving Error: machines of a Ray cluster have joined already")
        self._ray_thread = self._ray_thread or FunctionThread("ray")
        self._ray = await self._ray_thread.run(RayMachines.start, plan, self._endpoint)

    async def stop(self) -> None:
        """Stop listening for nodes, and disconnect those that have joined."""
        if self._nodes is not None:
            await self._nodes.close()
        if self._ray is not None and self._ray_thread is not None:
            await self._ray_thread.run(self._ray.stop)
