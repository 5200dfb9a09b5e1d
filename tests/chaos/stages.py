"""Stages that hang, crash, fork, print and allocate, with innocent requests beside them."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tests.chaos import asking, limits, states
from tests.chaos.asking import CLOSED
from tests.chaos.fault import BOUND, Fault, Must, Scene, Step
from tests.chaos.server import WATCHED, Site, send_signal
from tests.e2e.harness import eventually

FAILED = frozenset({500})
LOST = frozenset({503})
SHORT_NAP = 0.02
MIB = 1 << 20


def rows() -> Iterator[Fault]:
    yield from _hanging()
    yield from _dying()
    yield from _misbehaving()


def _hanging() -> Iterator[Fault]:
    hung = Must(frozenset({200, 503}), own=frozenset({500, 503, 504}))
    yield _row("an endless loop", "loop", must=hung, site=WATCHED)
    yield _row("a C call that holds the GIL for 3 s", "hold_gil", 3.0)
    yield _row("a C call that holds the GIL for 10 min", "hold_gil", 600.0, must=hung, site=WATCHED)
    yield _row(
        "an endless loop whose client has a deadline", "loop", timeout=1.0, must=hung, site=WATCHED
    )
    yield Fault(
        "an endless loop in every worker of a servable",
        states.idle,
        _call("loop", count=2),
        Must(own=frozenset({500, 503, 504})),
        site=WATCHED,
    )
    yield Fault(
        "a servable that hangs fills the server's limit of requests",
        states.idle,
        _call("nap", 4.0, count=40),
        Must(own=frozenset({200, 429})),
        site=Site(limit=20),
    )
    yield Fault(
        "SIGKILL to the master while a stage holds the GIL",
        states.on(states.master, _holding_gil),
        lambda scene: send_signal(scene.pid, signal.SIGKILL),
        Must(own=frozenset({CLOSED}), ends=True, statuses=frozenset()),
        is_short=True,
    )
    yield Fault(
        "SIGTERM to the master while a stage loops for ever",
        states.on(states.master, _looping),
        lambda scene: send_signal(scene.pid, signal.SIGTERM),
        Must(own=LOST, ends=True),
    )


def _dying() -> Iterator[Fault]:
    for title, method in (
        ("ends its process", "exit_now"),
        ("reads where nothing is", "segfault"),
        ("calls abort", "abort"),
        ("closes all its descriptors", "close_files"),
    ):
        must = Must(own=LOST)
        yield Fault(f"a stage that {title}", states.idle, _call(method, 3), must)
    own = Must(own=FAILED)
    yield _row("a stage that calls sys.exit", "raise_exit", 3, must=own, is_short=True)
    yield _row("a stage that raises KeyboardInterrupt", "interrupt", must=own)
    yield _row("a stage that calls itself for ever", "recurse", must=own)
    yield Fault(
        "one request of 40 ends the process of its worker",
        states.idle,
        _poison,
        Must(own=LOST),
        is_short=True,
    )
    yield Fault(
        "a client asks ten times for a stage that ends its process",
        states.idle,
        _again_and_again,
        Must(own=LOST),
    )
    yield Fault(
        "a worker dies when the start-up script has ended",
        states.on(states.classic_worker, states.idle),
        lambda scene: send_signal(scene.pid, signal.SIGKILL),
        site=Site(script_ends=True, toy_workers=1),
    )


def _misbehaving() -> Iterator[Fault]:
    for method, title in (("leave_child", "starts a program"), ("leave_fork", "forks a child")):
        yield Fault(
            f"a stage that {title} which stays, then its worker dies",
            states.idle,
            _leave_and_kill(method),
        )
    yield Fault(
        "a stage that leaves a thread, then the server is to end",
        states.on(states.master, _leaving_thread),
        lambda scene: send_signal(scene.pid, signal.SIGTERM),
        Must(ends=True),
    )
    yield _row(
        "a stage that opens files until there are none",
        "open_files",
        30_000,
        must=Must(own=FAILED, growth=128),
    )
    yield Fault(
        "a stage that allocates more than RLIMIT_AS allows",
        states.on(states.classic_worker, states.idle),
        _allocate_within_limit,
        Must(own=FAILED, growth=128),
        site=Site(toy_workers=1),
    )
    yield Fault(
        "a stage that allocates more than its control group has",
        states.on(states.classic_worker, states.idle),
        _allocate_in_group,
        Must(own=LOST | {200}),  # the next worker, which runs it again, is in no group
        site=Site(toy_workers=1),
        needs="cgroup",
    )
    yield Fault(
        "a stage that prints 200 MB",
        states.idle,
        _call("say", 20 * MIB, count=10),
        check=_has_small_logs,
    )


def _row(title: str, method: str, x: Any = 1, *, timeout: float = 0.0, **more: Any) -> Fault:
    """A stage, with innocent requests to the same servable."""
    return Fault(title, states.idle, _among_innocents(method, x, timeout), **more)


def _call(method: str, x: Any = 1, count: int = 1) -> Step:
    def call(scene: Scene) -> None:
        scene.cause(*[asking.classic(scene.server, method, x) for _ in range(count)])

    return call


def _among_innocents(method: str, x: Any, timeout: float) -> Step:
    def call(scene: Scene) -> None:
        server = scene.server
        headers = {"X-Request-Timeout": str(timeout)} if timeout else {}
        body = {"instances": [{"x": x}]}
        scene.cause(asking.post(server, f"/model/toy:{method}", body, headers))
        scene.ask(*[asking.classic(server, "nap", SHORT_NAP) for _ in range(6)])
        scene.ask(*[asking.classic_grpc(server, "nap", SHORT_NAP) for _ in range(6)])

    return call


def _poison(scene: Scene) -> None:
    server = scene.server
    scene.ask(*[asking.classic(server, "nap", 0.1) for _ in range(20)])
    eventually(lambda: states.running(server, "toy"))
    scene.cause(asking.classic(server, "exit_now", 3))
    scene.ask(*[asking.classic(server, "nap", 0.1) for _ in range(19)])


def _again_and_again(scene: Scene) -> None:
    for _ in range(10):
        with suppress(AssertionError):
            eventually(lambda: scene.server.row("toy")["num_workers"], 5)
        (flight,) = scene.cause(asking.classic(scene.server, "exit_now", 3))
        flight.join(5)


def _holding_gil(scene: Scene) -> None:
    scene.cause(asking.classic(scene.server, "hold_gil", 60.0))
    eventually(lambda: states.running(scene.server, "toy"))


def _looping(scene: Scene) -> None:
    scene.cause(asking.classic(scene.server, "loop", 1))
    eventually(lambda: states.running(scene.server, "toy"))


def _leaving_thread(scene: Scene) -> None:
    (flight,) = scene.ask(asking.classic(scene.server, "leave_thread", 1))
    flight.join(10)


def _leave_and_kill(method: str) -> Step:
    def act(scene: Scene) -> None:
        server = scene.server
        before = server.pids()
        (flight,) = scene.ask(asking.classic(server, method, 0))
        flight.join(10)
        assert set(server.pids()) - set(before), "nothing was left"
        for pid in server.workers("toy"):
            send_signal(pid, signal.SIGKILL)

    return act


def _allocate_within_limit(scene: Scene) -> None:
    with limits.limited(scene.pid, "AS", more=256 * MIB):
        _allocate(scene)


def _allocate_in_group(scene: Scene) -> None:
    with limits.memory_group(scene.pid, 512 * MIB):
        _allocate(scene)


def _allocate(scene: Scene) -> None:
    (flight,) = scene.cause(asking.classic(scene.server, "allocate", 1024))
    flight.join(BOUND)


def _has_small_logs(scene: Scene) -> list[str]:
    logs = scene.server.directory / "serving_logs"
    size = sum(path.stat().st_size for path in logs.iterdir())
    return [f"the logs have {size // MIB} MiB"] if size > 100 * MIB else []
