"""The `Control` of a front-end process: the last state that the master has sent."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mindspore_serving import log
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import Control, MethodCounts, ServableReadiness
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.server.processes.messages import ServedState
from mindspore_serving.tracing.options import changed_ratio


def current_state(control: Control, serial: int = 0) -> ServedState:
    """Return the current state of `control` as a message."""
    rows = control.readiness()
    names = dict.fromkeys(row.name for row in rows)
    signatures = [version for name in names for version in _signatures(control, name)]
    return ServedState(
        serial,
        control.is_ready,
        control.is_starting,
        list(rows),
        control.language_models(),
        signatures,
        [
            (version.name, version.version, method)
            for version in signatures
            for method in version.methods
            if control.streams(version.name, version.version, method)
        ],
        log.changed_level(),
        changed_ratio(),
    )


def _signatures(control: Control, name: str) -> list[ServableSignature]:
    """Return the signature of each version of a servable, the newest running one first."""
    newest = control.signature(name)
    if newest is None:
        return []
    older = (
        control.signature(name, version) for version in newest.versions if version != newest.version
    )
    return [newest, *(signature for signature in older if signature is not None)]


class Catalog:
    """The `core.service.Control` of a front-end process.

    Some methods are never called here: requests that need them are forwarded to the master.
    """

    def __init__(self) -> None:
        self.set(ServedState(0, False, True, [], [], [], []))

    def set(self, state: ServedState) -> None:
        """Replace the state."""
        self._state = state
        self._signatures = {(row.name, row.version): row for row in state.signatures}
        for row in reversed(state.signatures):  # version 0 is the first, which is the newest
            self._signatures[row.name, 0] = row
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
        signature = self.signature(servable, version)
        if signature is None or method not in signature.methods:
            return None
        return (servable, signature.version, method) in self._streams

    def describe(self) -> list[dict[str, Any]]:
        _passed_on()

    def observe(self) -> list[dict[str, Any]]:
        _passed_on()

    def history(self) -> Callable[[], dict[str, Any]]:
        _passed_on()

    def counts(self, servable: str, version: int, method: str) -> MethodCounts:
        _passed_on()


def _passed_on() -> NoReturn:
    raise AssertionError("a request that only the master can answer was not forwarded")
