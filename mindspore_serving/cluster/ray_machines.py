"""The machines of a Ray cluster as nodes: on each an actor that joins the master, as one by hand.

Ray places the actors (a placement group, one bundle for each machine), starts them again when they
or their machine are lost, and knows nothing else: requests and answers do not pass through it.
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
from mindspore_serving.cluster.node import ClusterNode, Home
from mindspore_serving.cluster.node_messages import JoinCluster
from mindspore_serving.errors import ServingError, StartError

PLACE_SECONDS = 60.0  # until Ray has found the machines
JOIN_SECONDS = 60.0
REACH_SECONDS = 5.0  # for the cluster to accept a connection
_FOR_EVER = -1


@dataclass(frozen=True, slots=True)
class RayPlan:
    """How many machines of the cluster at `address` join, 0 for all that fit, and with how many
    workers each at most.

    Each worker counts as one CPU of Ray's, or one GPU if `device_type` is "gpu".
    """

    num_machines: int
    slots: int
    address: str = "auto"
    device_type: str = "cpu"
    servables: str | None = None  # where they are on those machines; None: at the master's path


@dataclass(frozen=True, slots=True)
class MasterPlace:
    """Where the actors join.  `certificate` is the PEM text of the master's own, the only one that
    they trust; "" without TLS.
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
    def start(cls, plan: RayPlan, master: MasterPlace) -> "RayMachines":
        """Have Ray place the actors; they join later.  Blocks.

        Raises StartError: there is no Ray, no such cluster, or no room in it.
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
            _place(ray, plan, master, group, index) for index in range(len(group.bundle_specs))
        ]
        log.info("Ray has placed %d machines with %d slots each", len(actors), plan.slots)
        return cls(group, actors)

    def stop(self) -> None:
        """End the actors, and with them their workers.  Harmless if the cluster is gone."""
        import ray

        try:
            for actor in self._actors:
                ray.kill(actor)
            ray.util.remove_placement_group(self._group)
        except Exception as error:  # whatever Ray raises then
            log.warning("ending the machines of the Ray cluster: %s", error)
        ray.shutdown()


class _NodeActor:
    """Runs on a machine of the cluster.  A new one takes the place of one that is lost."""

    def __init__(self, plan: RayPlan, master: MasterPlace) -> None:
        import ray

        context = ray.get_runtime_context()
        ids = tuple(int(one) for one in context.get_accelerator_ids().get("GPU", ()))
        host = ray.util.get_node_ip_address()
        # A name of its own: the master may not know yet that the one before is lost.
        name = f"ray-{host}-{uuid.uuid4().hex[:6]}"
        offer = JoinCluster(__version__, name, plan.slots, plan.device_type, list(ids), {})
        address = MasterAddress(master.host, master.port, _trust(master.certificate), master.token)
        self._node = ClusterNode(offer, Home(address, plan.servables), lambda: None)
        threading.Thread(target=self._run, name="node", daemon=True).start()

    def _run(self) -> None:
        try:
            asyncio.run(self._node.run(JOIN_SECONDS))
        except ServingError as error:
            log.error("%s", error)


def _reserve(ray: Any, plan: RayPlan) -> Any:
    """The placement group: a bundle on each machine.  Raises StartError."""
    kind = "GPU" if plan.device_type == "gpu" else "CPU"
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = [node for node in alive if node.get(kind, 0) >= plan.slots]
    number = plan.num_machines or len(fitting)
    if 0 < number <= len(fitting):
        bundles = [{kind: plan.slots}] * number
        group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
        if group.wait(PLACE_SECONDS):
            return group
        ray.util.remove_placement_group(group)
    found = "; ".join(f"{one.get('CPU', 0):g} CPUs, {one.get('GPU', 0):g} GPUs" for one in alive)
    raise StartError(
        f"the Ray cluster at {plan.address!r} has no place: wanted are {number or 'some'} machines "
        f"with {plan.slots} free {kind}s each, there are {len(alive)} ({found})"
    )


def _place(ray: Any, plan: RayPlan, master: MasterPlace, group: Any, index: int) -> Any:
    """The actor in one bundle of `group`."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    amount = {"num_gpus": plan.slots} if plan.device_type == "gpu" else {"num_cpus": plan.slots}
    actor = ray.remote(_NodeActor).options(
        max_restarts=_FOR_EVER,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        ),
        **amount,
    )
    return actor.remote(plan, master)


def _trust(certificate: str) -> ssl.SSLContext | None:
    """TLS that accepts the one `certificate`, by whatever name; None without TLS."""
    if not certificate:
        return None
    context = ssl.create_default_context(cadata=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be an authority's
    context.check_hostname = False
    return context


def _connect(address: str) -> Any:
    """The module `ray`, connected to a cluster.  Raises StartError."""
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # else it takes the place of `print`
    try:
        import ray
    except ImportError as error:
        raise StartError("Ray is not installed: pip install 'mindspore-serving[ray]'") from error
    if ray.is_initialized():
        return ray
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except Exception as error:  # ConnectionError, RuntimeError and others
        raise StartError(f"no Ray cluster answers at {address!r}: {error}") from error
    return ray
