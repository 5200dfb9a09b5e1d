"""Signals to each process in each state: a row for each, made by the rules below."""

import signal
import time
from collections.abc import Callable, Iterator

from tests.chaos import states
from tests.chaos.asking import CLOSED, CUT
from tests.chaos.fault import Fault, Must, Scene, Step
from tests.chaos.server import WATCHED, Server, Site, send_signal

PAUSE = 1.0  # seconds between SIGSTOP and SIGCONT

TO_END = ("SIGTERM", "SIGINT")
DEADLY = ("SIGKILL", "SIGHUP")
HARMLESS = ("SIGPIPE", "SIGSTOP and SIGCONT")
SIGNALS = (*TO_END, *DEADLY, *HARMLESS, "SIGSTOP")
MASTER, CLASSIC, LANGUAGE = "the master", "a classic worker", "the language worker"
WHOM: dict[str, Callable[[Server], int]] = {
    MASTER: states.master,
    CLASSIC: states.classic_worker,
    LANGUAGE: states.language_worker,
}
STATES: dict[str, Step] = {
    "while idle": states.idle,
    "during a batch": states.batch,
    "during streams": states.stream,
    "during shutdown": states.shutting_down,
    "while loading": states.loading,
    "while restarting": states.restarting,
}
SHORT = {
    ("SIGTERM", MASTER, "during streams"),
    ("SIGKILL", MASTER, "during a batch"),
    ("SIGKILL", CLASSIC, "during a batch"),
    ("SIGKILL", CLASSIC, "while loading"),
}


def rows() -> Iterator[Fault]:
    for state in STATES:
        for whom in WHOM:
            yield from (_row(name, whom, state) for name in SIGNALS if _has(name, whom, state))


def _has(name: str, whom: str, state: str) -> bool:
    if state == "while restarting":
        return whom == CLASSIC and name != "SIGSTOP"
    # Stopped for good, the master answers nothing, and nobody says how long loading may take.
    return name != "SIGSTOP" or (whom != MASTER and state != "while loading")


def _row(name: str, whom: str, state: str) -> Fault:
    return Fault(
        f"{name} to {whom} {state}",
        states.on(WHOM[whom], STATES[state]),
        _send(name),
        _must(name, whom, state),
        site=WATCHED if name == "SIGSTOP" else Site(),
        is_start=state == "while loading",
        is_short=(name, whom, state) in SHORT,
    )


def _send(name: str) -> Step:
    def send(scene: Scene) -> None:
        if name == "SIGSTOP and SIGCONT":
            send_signal(scene.pid, signal.SIGSTOP)
            time.sleep(PAUSE)  # the fault itself
            send_signal(scene.pid, signal.SIGCONT)
        else:
            send_signal(scene.pid, signal.Signals[name])
        scene.server.release_loading()

    return send


def _must(name: str, whom: str, state: str) -> Must:
    if whom == MASTER:
        return _of_master(name, state)
    if state == "while loading" and name not in HARMLESS:
        return Must(ends=True, statuses=frozenset({1}))
    ends = state == "during shutdown"
    gone = {"tiny"} if name in TO_END and whom == LANGUAGE else set()
    codes = {200}
    if name in DEADLY and (whom == LANGUAGE or ends):
        codes |= {503}  # nobody else could run them
    if name in DEADLY and state == "during streams":
        codes |= {CUT}  # a stream that has begun is not repeated
    if name == "SIGSTOP":
        codes |= {500, 503, CUT}  # 500: the stage ran for longer than it may
    return Must(frozenset(codes), ends=ends, gone=frozenset(gone))


def _of_master(name: str, state: str) -> Must:
    if name in HARMLESS:
        return Must(ends=state == "during shutdown")
    if name in DEADLY:
        return Must(frozenset({CLOSED, CUT}), ends=True, statuses=frozenset())
    if state == "while loading":
        return Must(ends=True, statuses=frozenset())
    if state == "during shutdown":  # a second one that comes later ends it at once
        return Must(frozenset({200, CLOSED}), ends=True, statuses=frozenset({0, 130, 143}))
    return Must(ends=True)
