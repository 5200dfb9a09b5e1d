"""Machines of a Ray cluster as nodes: an actor on each joins the master like any other node.

Ray places the actors (a placement group, one bundle per machine) and restarts them if they or their
machine are lost.  Requests and replies do not pass through Ray.
"""

import asyncio
import os
import socket
import ssl
import threading
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from mindspore_serving import __version__, log
from mindspore_serving.cluster.dialing import MasterAddress
from mindspore_serving.cluster.node import ClusterNode, NodeSettings
from mindspore_serving.cluster.node_messages import JoinCluster
from mindspore_serving.errors import ServingError, StartError

PLACEMENT_SECONDS = 60.0  # timeout of Ray's placement group
JOIN_SECONDS = 60.0
REACH_SECONDS = 5.0  # timeout of connecting to the cluster
_UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class RayPlan:
    """The machines of a Ray cluster that join.

    Args:
        num_machines: number of machines; 0 for all that have enough CPUs or GPUs.
        slots: workers per machine; each counts as one CPU of Ray, or one GPU if `device_type` is
            "gpu".
        address: address of the cluster.
        servables: directory of servables on those machines; None: the master's path.
    """

    num_machines: int
    slots: int
    address: str = "auto"
    device_type: str = "cpu"
    servables: str | None = None


@dataclass(frozen=True, slots=True)
class MasterEndpoint:
    """Address and credentials for the actors to join the master.

    `certificate` is the master's own as PEM text, the only one they trust; "" without TLS.
    """

    host: str
    port: int
    token: str = field(repr=False)
    certificate: str = ""


class RayMachines:
    """The actors of one server."""

    def __init__(self, group: Any, actors: list[Any]) -> None:
        self._group = group
        self._actors = actors

    @classmethod
    def start(cls, plan: RayPlan, master: MasterEndpoint) -> "RayMachines":
        """Place the actors by Ray; they join later.  Blocks.

        Raises StartError if Ray is not installed, the cluster does not answer, or its machines do
        not suffice.
        """
        ray = _connect(plan.address)
        try:
            group = _reserve(ray, plan)
        except BaseException:
            ray.shutdown()
            raise
        if master.host in ("0.0.0.0", "::"):
            master = replace(master, host=ray.util.get_node_ip_address())
        actors = [
            _start_actor(ray, plan, master, group, index)
            for index in range(len(group.bundle_specs))
        ]
        log.info("Ray has placed %d machines with %d slots each", len(actors), plan.slots)
        return cls(group, actors)

    def stop(self) -> None:
        """Kill the actors and so their workers; log a warning if the cluster does not answer."""
        import ray

        try:
            for actor in self._actors:
                ray.kill(actor)
            ray.util.remove_placement_group(self._group)
        except Exception as error:  # Ray raises errors of many types
            log.warning("cannot stop the actors of the Ray cluster: %s", error)
        ray.shutdown()


class _NodeActor:
    """An actor that runs a node on a machine of the cluster; Ray restarts it if it is lost."""

    def __init__(self, plan: RayPlan, master: MasterEndpoint) -> None:
        import ray

        context = ray.get_runtime_context()
        ids = tuple(int(gpu) for gpu in context.get_accelerator_ids().get("GPU", ()))
        host = ray.util.get_node_ip_address()
        # A new name at each start: the master may not know yet that the previous node is lost.
        name = f"ray-{host}-{uuid.uuid4().hex[:6]}"
        offer = JoinCluster(__version__, name, plan.slots, plan.device_type, list(ids), {})
        address = MasterAddress(master.host, master.port, _trust(master.certificate), master.token)
        home = NodeSettings(address, plan.servables, host)
        self._node = ClusterNode(offer, home, lambda: None)
        threading.Thread(target=self._run, name="node", daemon=True).start()

    def _run(self) -> None:
        try:
            asyncio.run(self._node.run(JOIN_SECONDS))
        except ServingError as error:
            log.error("%s", error)


def _reserve(ray: Any, plan: RayPlan) -> Any:
    """Create a placement group with a bundle on each machine.  Raises StartError."""
    kind = "GPU" if plan.device_type == "gpu" else "CPU"
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = [node for node in alive if node.get(kind, 0) >= plan.slots]
    number = plan.num_machines or len(fitting)
    if 0 < number <= len(fitting):
        bundles = [{kind: plan.slots}] * number
        group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
        if group.wait(PLACEMENT_SECONDS):
            return group
        ray.util.remove_placement_group(group)
    available = "; ".join(
        f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in alive
    )
    raise StartError(
        f"the Ray cluster at {plan.address!r} is too small: expected {number or 'some'} machines "
        f"with {plan.slots} free {kind}s each, it has {len(alive)} ({available})"
    )


def _start_actor(ray: Any, plan: RayPlan, master: MasterEndpoint, group: Any, index: int) -> Any:
    """Start the actor of one bundle of `group` and return it."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    amount = {"num_gpus": plan.slots} if plan.device_type == "gpu" else {"num_cpus": plan.slots}
    actor = ray.remote(_NodeActor).options(
        max_restarts=_UNLIMITED,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        ),
        **amount,
    )
    return actor.remote(plan, master)


def _trust(certificate: str) -> ssl.SSLContext | None:
    """Return a TLS context that trusts only `certificate`, for any host name; None without TLS."""
    if not certificate:
        return None
    context = ssl.create_default_context(cadata=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be a CA certificate
    context.check_hostname = False
    return context


def _connect(address: str) -> Any:
    """Import `ray`, connect it to a cluster, and return the module.  Raises StartError."""
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # else Ray replaces `print`
    try:
        import ray
    except ImportError as error:
        raise StartError("Ray is not installed: pip install 'mindspore-serving[ray]'") from error
    if ray.is_initialized():
        return ray
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would retry for minutes
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except Exception as error:  # ConnectionError, RuntimeError and others
        raise StartError(f"no Ray cluster answers at {address!r}: {error}") from error
    return ray
