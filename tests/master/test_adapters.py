"""LoRA adapters of workers that fail, are lost or start later: all have the same ones."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import (
    Code,
    InvalidInputs,
    NotFound,
    ServableUnavailable,
    WorkerUnavailable,
)
from mindspore_serving.ipc.messages import AdapterSource, Fault
from mindspore_serving.master.adapter_calls import Faults
from mindspore_serving.master.adapters import ServedAdapters
from mindspore_serving.master.registry import Registry, ServableService
from tests import cards

CARD = replace(cards.CARD, adapters=("given",), adapter_paths=("/given",))


class Worker:
    """Cannot load the adapters in `broken`; ends when it is to load one in `fatal`."""

    owns_models = True
    name = "worker"

    def __init__(self, broken: Sequence[str] = (), fatal: Sequence[str] = ()) -> None:
        self.broken, self.fatal = set(broken), set(fatal)
        self.has = {"given": "/given"}
        self.adapter_calls = self

    async def set(self, adapters: Sequence[AdapterSource]) -> Faults:
        wanted = {one.name: one.path for one in adapters}
        if self.fatal & wanted.keys():
            raise WorkerUnavailable("it ended")
        self.has = {name: path for name, path in wanted.items() if name not in self.broken}
        found = wanted.keys() & self.broken
        return {name: Fault(Code.INVALID_INPUTS, f"{name} does not fit") for name in found}


def served(*workers: Any) -> tuple[ServedAdapters, ServableService]:
    registry = Registry(lambda *_: None)  # type: ignore[arg-type, return-value]
    service = ServableService("model", 1, None, workers=list(workers))  # type: ignore[arg-type]
    service.card = CARD
    registry.all.append(service)
    adapters = ServedAdapters(registry)
    return adapters, service


async def join(adapters: ServedAdapters, worker: Any) -> ModelCard:
    async with adapters.joining("model", worker, CARD) as card:
        assert card is not None
        return card


async def test_all_workers_load_an_adapter_and_the_card_lists_its_name() -> None:
    first, second = Worker(), Worker()
    adapters, service = served(first, second)
    await join(adapters, first)
    await adapters.load("model", "new", "/new")
    assert first.has == second.has == {"given": "/given", "new": "/new"}
    assert service.card is not None
    assert service.card.adapters == ("given", "new")
    assert service.card.adapter_paths == ("/given", "/new")


@pytest.mark.parametrize("failing", [{"broken": ["new"]}, {"fatal": ["new"]}])
async def test_an_adapter_that_a_worker_cannot_load_is_loaded_by_none(
    failing: dict[str, list[str]],
) -> None:
    good, bad = Worker(), Worker(**failing)
    adapters, service = served(good, bad)
    await join(adapters, good)
    with pytest.raises((InvalidInputs, WorkerUnavailable), match="new does not fit|it ended"):
        await adapters.load("model", "new", "/new")
    assert good.has == {"given": "/given"}
    assert service.card == CARD
    await adapters.load("model", "other", "/other")
    assert good.has == {"given": "/given", "other": "/other"}


async def test_an_adapter_that_cannot_be_replaced_stays() -> None:
    good, bad = Worker(), Worker()
    adapters, _ = served(good, bad)
    await join(adapters, good)
    await adapters.load("model", "new", "/new")
    with pytest.raises(InvalidInputs, match="'new' is loaded already; load_inplace replaces it"):
        await adapters.load("model", "new", "/newer")
    bad.broken = {"new"}
    with pytest.raises(InvalidInputs, match="new does not fit"):
        await adapters.load("model", "new", "/newer", in_place=True)
    assert good.has["new"] == "/new"


async def test_a_later_worker_has_the_adapters_of_the_first_workers() -> None:
    first, later = Worker(), Worker()
    adapters, _ = served(first)
    await join(adapters, first)
    await adapters.load("model", "new", "/new")
    await adapters.unload("model", "given")
    card = await join(adapters, later)
    assert first.has == later.has == {"new": "/new"}
    assert card.adapters == ("new",)


async def test_an_adapter_that_a_later_worker_cannot_load_is_unloaded_by_all() -> None:
    """Requests that name it are refused, and not only by some."""
    first, later = Worker(), Worker(broken=["new"])
    adapters, service = served(first)
    await join(adapters, first)
    await adapters.load("model", "new", "/new")
    card = await join(adapters, later)
    assert first.has == later.has == {"given": "/given"}
    assert card.adapters == ("given",)
    assert service.card is not None
    assert service.card.adapters == ("given",)


async def test_an_unloaded_adapter_may_be_loaded_again() -> None:
    worker = Worker()
    adapters, _ = served(worker)
    await join(adapters, worker)
    await adapters.unload("model", "given")
    assert worker.has == {}
    await adapters.load("model", "given", "/elsewhere")
    assert worker.has == {"given": "/elsewhere"}
    with pytest.raises(NotFound, match="'none' is not loaded"):
        await adapters.unload("model", "none")


async def test_a_worker_that_joins_waits_for_a_load_that_is_under_way() -> None:
    first, later = Worker(), Worker()
    adapters, _ = served(first)
    await join(adapters, first)
    await asyncio.gather(adapters.load("model", "new", "/new"), join(adapters, later))
    assert first.has == later.has == {"given": "/given", "new": "/new"}


async def test_models_without_workers_load_nothing() -> None:
    adapters, _ = served()
    with pytest.raises(ServableUnavailable, match="'model' has no worker now"):
        await adapters.load("model", "new", "/new")
    with pytest.raises(NotFound, match="There is no language model 'other'"):
        await adapters.load("other", "new", "/new")
