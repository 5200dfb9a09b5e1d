"""The `Control` of a front-end process: what the master has said last of what is served."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mindspore_serving import log
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import Control, MethodCounts, ServableReadiness
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.server.processes.messages import State


def state_of(control: Control, serial: int = 0) -> State:
    """What `control` says now."""
    rows = control.readiness()
    signatures = [
        found for name in dict.fromkeys(r.name for r in rows) for found in _of(control, name)
    ]
    return State(
        serial,
        control.is_ready,
        control.is_starting,
        list(rows),
        control.language_models(),
        signatures,
        [
            (one.name, one.version, method)
            for one in signatures
            for method in one.methods
            if control.streams(one.name, one.version, method)
        ],
        log.changed_level(),
    )


def _of(control: Control, name: str) -> list[ServableSignature]:
    """Each version of a servable, the newest that runs first."""
    newest = control.signature(name)
    if newest is None:
        return []
    others = (control.signature(name, one) for one in newest.versions if one != newest.version)
    return [newest, *(one for one in others if one is not None)]


class Catalog:
    """See `core.service.Control`.  What only the master knows is not asked here: the requests for
    it are passed on.
    """

    def __init__(self) -> None:
        self.set(State(0, False, True, [], [], [], []))

    def set(self, state: State) -> None:
        self._state = state
        self._signatures = {(one.name, one.version): one for one in state.signatures}
        for one in reversed(state.signatures):
            self._signatures[one.name, 0] = one
        self._streams = set(state.streams)

    @property
    def is_ready(self) -> bool:
        return self._state.is_ready

    @property
    def is_starting(self) -> bool:
        return self._state.is_starting

    def readiness(self) -> Sequence[ServableReadiness]:
        return self._state.readiness

    def language_models(self) -> list[tuple[str, int, ModelCard]]:
        return self._state.language_models

    @property
    def has_language_models(self) -> bool:
        return bool(self._state.language_models)

    def signature(self, servable: str, version: int = 0) -> ServableSignature | None:
        return self._signatures.get((servable, version))

    def streams(self, servable: str, version: int, method: str) -> bool | None:
        found = self.signature(servable, version)
        if found is None or method not in found.methods:
            return None
        return (servable, found.version, method) in self._streams

    def describe(self) -> list[dict[str, Any]]:
        _passed_on()

    def observe(self) -> list[dict[str, Any]]:
        _passed_on()

    def history(self) -> Callable[[], dict[str, Any]]:
        _passed_on()

    def counts(self, servable: str, version: int, method: str) -> MethodCounts:
        _passed_on()


def _passed_on() -> NoReturn:
    raise AssertionError("a request that only the master can answer was not passed on to it")
