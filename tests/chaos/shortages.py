"""No descriptors, no tasks, no memory, no disk; clocks that step; ports and directories in use."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tests.chaos import asking, limits, states
from tests.chaos.asking import CLOSED
from tests.chaos.fault import BOUND, END_BOUND, Fault, Must, Scene, Step
from tests.chaos.server import Server, Site, send_signal, wait_until_gone

MIB = 1 << 20
SHORTAGE = 2.5  # seconds that a shortage lasts
ONE = Site(toy_workers=1)
SMALL_LOGS = Site(has_small_logs=True)
STEPPED = Site(clock="+0", environment=(("DONT_FAKE_MONOTONIC", "1"),))


def rows() -> Iterator[Fault]:
    yield from _without_resources()
    yield from _without_disk()
    yield from _clocks()
    yield from _places()


def _without_resources() -> Iterator[Fault]:
    may_close = Must(own=frozenset({200, CLOSED}))
    yield Fault(
        "no descriptors in the master while clients come",
        states.idle,
        _short_of(_no_files, _new_clients),
        may_close,
        is_short=True,
    )
    for whom, pick in (("classic", states.classic_worker), ("language", states.language_worker)):
        yield Fault(
            f"no descriptors in the master while the {whom} worker dies",
            states.on(pick, states.idle),
            _short_of(_no_files, _kill),
            site=ONE,
        )
    yield Fault(
        "no process can be started while a worker dies",
        states.on(states.classic_worker, states.idle),
        _short_of(_no_tasks, _kill),
        site=ONE,
        needs="cgroup",
    )
    yield Fault(
        "no memory in the master while large bodies come",
        states.idle,
        _short_of(_no_memory, _large_bodies),
        Must(own=frozenset({200, 413, 500, 503, CLOSED}), growth=256),
    )


def _short_of(
    shortage: Callable[[Server], AbstractContextManager[None]], do: Callable[[Scene], object]
) -> Step:
    def act(scene: Scene) -> None:
        with shortage(scene.server):
            do(scene)
            time.sleep(SHORTAGE)  # the fault itself

    return act


def _no_files(server: Server) -> AbstractContextManager[None]:
    return limits.limited(server.pid, "NOFILE", 3)


def _no_tasks(server: Server) -> AbstractContextManager[None]:
    return limits.task_group(server.pid)


def _no_memory(server: Server) -> AbstractContextManager[None]:
    return limits.limited(server.pid, "AS", more=32 * MIB)


def _new_clients(scene: Scene) -> None:
    server = scene.server
    scene.cause(*[asking.classic(server, "double", 1) for _ in range(20)])
    scene.cause(*[asking.classic_grpc(server, "double", 1) for _ in range(5)])


def _kill(scene: Scene) -> None:
    send_signal(scene.pid, signal.SIGKILL)


def _large_bodies(scene: Scene) -> None:
    body = b'{"instances":[{"x":"' + b"a" * (40 * MIB) + b'"}]}'
    scene.cause(*[asking.post(scene.server, "/model/toy:echo", body) for _ in range(4)])


# --- disk ---------------------------------------------------------------------------------------


def _without_disk() -> Iterator[Fault]:
    yield Fault(
        "a stage prints while the disk of the logs is full",
        states.idle,
        _with_full_disk(lambda scene: scene.cause(asking.classic(scene.server, "say", 100_000))),
        site=SMALL_LOGS,
        needs="mount",
        is_short=True,
    )
    yield Fault(
        "a worker dies while the disk of the logs is full",
        states.on(states.classic_worker, states.idle),
        _with_full_disk(_kill),
        site=SMALL_LOGS,
        needs="mount",
    )
    yield Fault(
        "a worker dies while the disk of the master's log is full",
        states.on(states.classic_worker, states.batch),
        _with_full_disk(_kill),
        site=Site(
            has_small_logs=True,
            environment=(
                ("GLOG_v", "1"),
                ("GLOG_logtostderr", "0"),
                ("GLOG_log_dir", "serving_logs"),
            ),
        ),
        needs="mount",
    )
    yield Fault(
        "a stage prints more than RLIMIT_FSIZE allows",
        states.on(states.classic_worker, states.idle),
        _print_over_limit,
        site=ONE,
    )


def _with_full_disk(do: Callable[[Scene], object]) -> Step:
    def act(scene: Scene) -> None:
        with limits.full_disk(scene.server.directory / "serving_logs"):
            do(scene)
            for flight in scene.causes:
                flight.join(BOUND)
            time.sleep(1.0)  # the worker that is started meanwhile

    return act


def _print_over_limit(scene: Scene) -> None:
    with limits.limited(scene.pid, "FSIZE", 1000):
        (flight,) = scene.cause(asking.classic(scene.server, "say", 100_000))
        flight.join(BOUND)


# --- clocks -------------------------------------------------------------------------------------


def _clocks() -> Iterator[Fault]:
    for words, step in (("an hour on", "+3600"), ("a day back", "-86400")):
        for name, state in (("a batch", states.batch), ("streams", states.stream)):
            yield Fault(
                f"the clock steps {words} during {name}",
                state,
                _step_clock(step),
                site=STEPPED,
                needs="faketime",
            )
        yield Fault(
            f"the clock steps {words} while a worker restarts",
            states.restarting,
            _step_clock(step),
            site=STEPPED,
            needs="faketime",
        )


def _step_clock(step: str) -> Step:
    def act(scene: Scene) -> None:
        scene.server.set_clock(step)
        scene.server.release_loading()
        scene.undo.callback(scene.server.set_clock, "+0")

    return act


# --- places -------------------------------------------------------------------------------------


def _places() -> Iterator[Fault]:
    fails = Must(ends=True, statuses=frozenset({1}))
    for port in ("http", "grpc"):
        for is_first, words in ((False, "before"), (True, "when")):
            yield Fault(
                f"the {port} port is taken, which is seen {words} servables are loaded",
                states.idle,
                lambda scene: scene.server.release_loading(),
                fails,
                Site(taken=port, servables_first=is_first),
                is_start=True,
                is_short=is_first and port == "grpc",
            )
    yield Fault(
        "a second server is started in the same directory, and killed",
        states.idle,
        _start_another,
    )
    yield Fault(
        "the directory of the logs is removed, and a worker dies",
        states.on(states.classic_worker, states.idle),
        _remove,
    )


def _start_another(scene: Scene) -> None:
    other = Server(scene.server.site, scene.server.directory)
    try:
        other.wait_until_started()
        scene.ask(asking.classic(other, "double", 1), asking.completion(other, 4))
        for flight in scene.flights:
            flight.join(BOUND)
        send_signal(other.pid, signal.SIGKILL)
        assert wait_until_gone(other.pids(), END_BOUND), "workers are left"
    finally:
        other.close()


def _remove(scene: Scene) -> None:
    directory = scene.server.directory / "serving_logs"
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    _kill(scene)
