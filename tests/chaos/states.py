"""The states that a server is brought into before a fault, and whom the fault is done to."""

import signal
from collections.abc import Callable

from tests.chaos import asking
from tests.chaos.fault import Scene, Step
from tests.chaos.processes import runs_python
from tests.chaos.server import Server, send_signal
from tests.e2e.harness import eventually

NAP = 0.6  # seconds of a request of a batch
LONG = 900  # tokens: a generation of a second or two


def idle(scene: Scene) -> None:
    """Nobody asks."""


def batch(scene: Scene) -> None:
    """Requests that want one answer are in flight, to all servables that can be slow."""
    server = scene.server
    naps = [asking.classic(server, "nap", NAP) for _ in range(4)]
    naps += [asking.classic_grpc(server, "nap", NAP) for _ in range(2)]
    texts = [asking.completion(server, LONG) for _ in range(3)]
    scene.ask(*naps, *texts)

    def runs() -> bool:
        if not any(each.code is None for each in scene.flights):  # they were over before a look
            scene.ask(*naps, *texts)
        return running(server, "toy") > 0 and running(server, "tiny") > 0

    eventually(runs, what="a batch")


def stream(scene: Scene) -> None:
    """Streams have begun, of all servables that have some."""
    server = scene.server
    body = {"instances": [{"x": 60}]}
    flights = scene.ask(
        asking.post(server, "/model/toy:count_stream", body),
        asking.classic_grpc_stream(server, "count", 60),
        asking.completion(server, LONG, stream=True),
        asking.chat(server, LONG, stream=True),
    )
    eventually(lambda: all(each.has_begun.is_set() for each in flights), what="streams")


def shutting_down(scene: Scene) -> None:
    """The master has got SIGTERM, and requests are in flight."""
    batch(scene)
    send_signal(scene.server.pid, signal.SIGTERM)
    eventually(lambda: scene.server.refuses, what="closed ports")


def loading(scene: Scene) -> None:
    """The server starts: its ports are open, its workers load."""
    server = scene.server
    eventually(lambda: len(_loading(server, "toy")) == server.site.toy_workers)
    eventually(lambda: _loading(server, "tiny"))


def restarting(scene: Scene) -> None:
    """A worker of `toy` has died, and its successor loads."""
    server = scene.server
    old = server.workers("toy")
    server.hold_loading()
    scene.undo.callback(server.release_loading)
    send_signal(old[0], signal.SIGKILL)
    scene.pid = eventually(lambda: [pid for pid in _loading(server, "toy") if pid not in old])[0]


def _loading(server: Server, servable: str) -> list[int]:
    """Its workers whose interpreter has begun."""
    return [pid for pid in server.workers(servable) if runs_python(pid)]


def running(server: Server, servable: str) -> int:
    """Its requests that a worker has."""
    return int(server.row(servable)["requests"]["running"])


# --- whom -------------------------------------------------------------------------------------


def master(server: Server) -> int:
    return server.pid


def classic_worker(server: Server) -> int:
    """One of those of `toy`."""
    return server.workers("toy")[0]


def language_worker(server: Server) -> int:
    return server.workers("tiny")[0]


def on(pick: Callable[[Server], int], state: Step) -> Step:
    """Prepare `state`, with `pick` as the process that the fault is for."""

    def prepare(scene: Scene) -> None:
        state(scene)
        scene.pid = scene.pid or pick(scene.server)

    return prepare
