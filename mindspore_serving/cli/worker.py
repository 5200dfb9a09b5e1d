"""`mindspore-serving worker --join`: run workers on this machine for a server elsewhere."""

import asyncio
import os
import signal
import socket
import sys

from mindspore_serving import __version__
from mindspore_serving.aio import new_loop
from mindspore_serving.cli.endpoint import to_context
from mindspore_serving.cli.node_settings import WorkerSettings
from mindspore_serving.cluster.dialing import MasterAddress, read_token
from mindspore_serving.cluster.node import ClusterNode, NodeSettings
from mindspore_serving.cluster.node_messages import JoinCluster, check_node
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends import address as addresses
from mindspore_serving.server.lifetime import REPEAT


def run(settings: WorkerSettings) -> int:
    """Run workers until SIGTERM or SIGINT; return 0.

    Raises ServingError if the master refuses this machine, or cannot be reached at first.
    """
    offer = to_offer(settings)
    home = NodeSettings(_master(settings), _directory(settings.servables), settings.address)
    node = ClusterNode(offer, home, lambda: _say(joined(offer, home)))
    _say(f"Joining {settings.join} ...")
    loop = new_loop()
    try:
        loop.run_until_complete(_run(node, settings))
    finally:
        loop.close()
    _say("Stopped.")
    return 0


def to_offer(settings: WorkerSettings) -> JoinCluster:
    """Return the description of this machine for the master.  Raises InvalidInputs."""
    ids, labels = settings.device_ids, dict(settings.labels)
    name = settings.name or socket.gethostname()
    slots = settings.slots or len(ids) or os.cpu_count() or 1
    kind = (settings.device_type or "none").lower()
    offer = JoinCluster(__version__, name, slots, kind, list(ids), labels)
    check_node(offer)
    return offer


def joined(offer: JoinCluster, home: NodeSettings) -> str:
    """Return the line that is printed when the master has accepted this machine."""
    words = [f"{offer.slots} slot{'s' * (offer.slots != 1)}"]
    if offer.device_type != "none":
        words.append(f"device type {offer.device_type}")
    if offer.device_ids:
        words.append(f"devices {','.join(map(str, offer.device_ids))}")
    words += [f"{name}={value}" for name, value in offer.labels.items()]
    words.append(f"servables at {home.servables or 'the paths of the master'}")
    master = f"{home.master.host}:{home.master.port}"
    return f"Joined {master} as {offer.name}: {', '.join(words)}"


async def _run(node: ClusterNode, settings: WorkerSettings) -> None:
    """Run until a signal: the first lets workers finish, a later one stops them at once."""
    running = asyncio.ensure_future(node.run(settings.join_timeout))
    loop, leaving = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    began = 0.0

    async def leave() -> None:
        await node.leave(settings.shutdown_timeout)
        running.cancel()

    def on_signal() -> None:
        nonlocal began
        if leaving and loop.time() - began > REPEAT:
            running.cancel()
        elif not leaving:
            began = loop.time()
            _say("Leaving: the workers finish their requests.")
            leaving.append(asyncio.ensure_future(leave()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await running
    except asyncio.CancelledError:
        if not leaving:
            raise
    finally:
        for task in leaving:
            task.cancel()


def _master(settings: WorkerSettings) -> MasterAddress:
    if not settings.join:
        raise InvalidInputs("--join HOST:PORT is missing: the --worker-address of the master")
    address = addresses.parse(settings.join, "--join", allow_unix=False)
    token = read_token(settings.token_file)
    if settings.insecure:
        addresses.check_loopback(address, "--join")
        return MasterAddress(address.host, address.port, None, token)
    if not token and not settings.tls_cert:
        raise InvalidInputs(
            "a token (--token-file or MINDSPORE_SERVING_TOKEN) or a certificate (--tls-cert and "
            "--tls-key) is missing: the master refuses machines without one"
        )
    return MasterAddress(address.host, address.port, to_context(settings), token)


def _directory(path: str | None) -> str | None:
    if path is None:
        return None
    if not os.path.isdir(path):
        raise InvalidInputs(f"--servables is {path!r}, expected a directory")
    return os.path.realpath(path)


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
