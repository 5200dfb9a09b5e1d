"""What is loaded and unloaded by name, and as files change; nothing is really started."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving.core.deployment import Deployment, RefusedServable
from mindspore_serving.core.service import ModelState, ServableReadiness
from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.server.repository import ModelRepository
from tests.waiting import until


class Server:
    """A repository over directories of a test, and what it has started."""

    def __init__(self, root):
        self.root = root
        self.wanted = []
        self.deployed = []
        self.rolls = []  # (started, ended), as (name, version)
        self.error = None
        self.num_looks = 0
        self.num_waiting = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.repository = ModelRepository(self._roll, lambda: list(self.deployed), self.readiness)

    async def _roll(self, new, old, seconds):
        self.num_waiting += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.rolls.append(
            tuple(sorted((d.name, d.version_number) for d in some) for some in (new, old))
        )
        gone = [one for one in self.deployed if one in old]
        self.deployed = [one for one in self.deployed if one not in gone] + list(new)

    def readiness(self):
        return [ServableReadiness(one.name, one.version_number, True) for one in self.deployed]

    def write(self, name, *versions, content="one"):
        for version in versions:
            path = self.root / name / str(version)
            path.mkdir(parents=True, exist_ok=True)
            (self.root / "written").write_text(content)
            (self.root / "written").rename(path / "model.onnx")  # nobody sees half of it

    def want(self, *names_and_versions):
        self.wanted = [
            Deployment(str(self.root), name, version_number=v) for name, v in names_and_versions
        ]

    def give(self):
        self.num_looks += 1
        if isinstance(self.wanted, Exception):
            raise self.wanted
        return list(self.wanted)

    def failures(self):
        """What the metric says of each version."""
        page = Page()
        self.repository.add_metrics(page)
        return {
            tuple(one.labels.values()): one.value
            for family in text_string_to_metric_families(page.render().decode())
            for one in family.samples
        }

    async def begin(self):
        self.deployed = [one for one in self.give() if isinstance(one, Deployment)]
        await self.repository.begin(self.give(), self.give)


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    made.write("net", 1, 2)
    made.want(("net", 2))
    return made


@pytest.fixture
async def follow(server):
    """Starts to look at the files all the time."""
    tasks = []

    async def start():
        await server.begin()
        tasks.append(asyncio.create_task(server.repository.follow(0.001)))

    yield start
    for task in tasks:
        task.cancel()


async def test_an_unchanged_version_is_not_loaded_again(server):
    await server.begin()
    await server.repository.load("net")
    assert server.rolls == []


async def test_a_forced_load_reloads_an_unchanged_version(server):
    await server.begin()
    await server.repository.load("net", is_forced=True)
    assert server.rolls == [([("net", 2)], [("net", 2)])]
    assert server.deployed[0].generation > 0


async def test_a_version_whose_files_have_changed_takes_its_own_place(server):
    server.want(("net", 1), ("net", 2))
    await server.begin()
    server.write("net", 2, content="another")
    await server.repository.load("net")
    assert server.rolls == [([("net", 2)], [("net", 2)])]
    await server.repository.load("net")
    assert len(server.rolls) == 1


async def test_changed_settings_are_a_change(server):
    await server.begin()
    server.wanted = [Deployment(str(server.root), "net", version_number=2, max_requests=7)]
    await server.repository.load("net")
    assert server.deployed[0].max_requests == 7


async def test_settings_of_a_client_hold_until_the_next_load(server):
    await server.begin()
    await server.repository.load("net", changes={"max_requests": 7})
    assert server.deployed[0].max_requests == 7
    server.error = StartError("broken")
    with pytest.raises(StartError):
        await server.repository.load("net", changes={"max_requests": 8})
    server.error = None
    server.write("net", 2, content="another")
    await server.repository.load("net", changes={"max_requests": 7})
    assert server.deployed[0].max_requests == 7
    await server.repository.load("net")
    assert server.deployed[0].max_requests == 0


async def test_settings_of_a_client_stay_when_files_are_followed(server, follow):
    await follow()
    await server.repository.load("net", changes={"max_requests": 7})
    num_rolls, num_looks = len(server.rolls), server.num_looks
    await until(lambda: server.num_looks > num_looks + 3)
    assert (len(server.rolls), server.deployed[0].max_requests) == (num_rolls, 7)


async def test_a_newer_version_replaces_the_old_version(server):
    await server.begin()
    server.write("net", 3)
    server.want(("net", 3))
    await server.repository.load("net")
    assert server.rolls == [([("net", 3)], [("net", 2)])]


async def test_an_unloaded_servable_may_be_loaded_again(server):
    await server.begin()
    await server.repository.unload("net")
    assert server.rolls == [([], [("net", 2)])]
    with pytest.raises(NotFound, match="'net' is not loaded"):
        await server.repository.unload("net")
    await server.repository.load("net")
    assert server.rolls[1:] == [([("net", 2)], [])]


async def test_a_missing_servable_cannot_be_loaded(server):
    await server.begin()
    with pytest.raises(NotFound, match="no servable 'other'"):
        await server.repository.load("other")


async def test_more_servables_can_be_added(server):
    await server.begin()
    server.write("more", 1)
    wanted = [Deployment(str(server.root), "more", version_number=1)]
    await server.repository.add("more", lambda: wanted)
    assert server.rolls == [([("more", 1)], [])]
    await server.repository.unload("more")
    await server.repository.load("more")
    assert [one.name for one in server.deployed] == ["net", "more"]


async def test_a_servable_that_cannot_be_loaded_is_not_added(server):
    await server.begin()
    server.error = StartError("broken")
    with pytest.raises(StartError):
        await server.repository.add(
            "more", lambda: [Deployment(str(server.root), "more", version_number=1)]
        )
    server.error = None
    with pytest.raises(NotFound):
        await server.repository.load("more")


async def test_the_index_has_deployed_and_available_versions(server):
    server.want(("net", 1), ("net", 2), ("other", 1))
    await server.begin()
    await server.repository.unload("other")
    assert await server.repository.index() == [
        ModelState("net", 1, True, True),
        ModelState("net", 2, True, True),
        ModelState("other", 1, False, False, "it is not loaded"),
    ]
    server.error = StartError("broken")
    with pytest.raises(StartError):
        await server.repository.load("other")
    assert (await server.repository.index())[-1].reason == "broken"


async def test_the_index_has_invalid_servables_with_the_reason(server):
    model = server.wanted
    server.wanted = [
        *model,
        RefusedServable("scaler", "it is a pickle"),
        RefusedServable("", "notes.md: no model"),
    ]
    await server.begin()
    index = [
        ModelState("net", 2, True, True),
        ModelState("scaler", 0, False, False, "it is a pickle"),
    ]
    assert await server.repository.index() == index
    assert server.failures() == {("net", "2"): 0, ("scaler", "0"): 1}
    with pytest.raises(StartError, match="'scaler' cannot be loaded: it is a pickle"):
        await server.repository.load("scaler")
    server.write("scaler", 1)
    server.want(("net", 2), ("scaler", 1))
    await server.repository.load("scaler")
    assert server.rolls == [([("scaler", 1)], [])]
    assert server.failures() == {("net", "2"): 0, ("scaler", "1"): 0}


async def test_who_asked_may_leave_before_the_end(server):
    await server.begin()
    server.gate = asyncio.Event()
    asking = asyncio.create_task(server.repository.unload("net"))
    await until(lambda: server.num_waiting)
    asking.cancel()
    server.gate.set()
    await until(lambda: server.rolls == [([], [("net", 2)])])
    await server.repository.load("net")
    assert [one.name for one in server.deployed] == ["net"]


async def test_names_that_are_not_there_leave_nothing_behind(server):
    await server.begin()
    for number in range(3):
        for act in (server.repository.load, server.repository.unload):
            with pytest.raises(NotFound) as caught:
                await act(f"name-{number}" * 1000)
            assert len(str(caught.value)) < 200
    assert not server.repository._locks


async def test_concurrent_clients_share_a_scan(server):
    await server.begin()
    looks = server.num_looks
    await asyncio.gather(*(server.repository.index() for _ in range(20)))
    assert server.num_looks == looks + 1


async def test_the_index_has_deployed_versions_if_a_scan_fails(server):
    await server.begin()
    server.wanted = StartError("the directory is gone")
    assert await server.repository.index() == [ModelState("net", 2, True, True)]


# --- following files ----------------------------------------------------------------------------


async def test_new_changed_and_removed_servables_are_followed(server, follow):
    await follow()
    server.write("new", 1)
    server.want(("net", 2), ("new", 1))
    await until(lambda: server.rolls)
    server.write("net", 2, content="changed")
    await until(lambda: len(server.rolls) > 1)
    server.want(("new", 1))
    await until(lambda: len(server.rolls) > 2)
    assert server.rolls == [
        ([("new", 1)], []),
        ([("net", 2)], [("net", 2)]),
        ([], [("net", 2)]),
    ]


async def test_a_servable_unloaded_by_name_stays_unloaded(server, follow):
    server.want(("net", 1), ("other", 1))
    await follow()
    await server.repository.unload("net")
    server.want(("net", 1))
    await until(lambda: len(server.rolls) > 1)
    assert server.rolls == [([], [("net", 1)]), ([], [("other", 1)])]


async def test_a_failed_servable_is_retried_when_its_files_change(server, follow, caplog):
    await follow()
    server.error = StartError("the weights are broken")
    server.write("net", 2, content="broken")
    await until(lambda: "the weights are broken" in caplog.text)
    server.error = None
    looks = server.num_looks
    await until(lambda: server.num_looks > looks + 5)
    assert server.rolls == []
    assert caplog.text.count("the weights are broken") == 1
    server.write("net", 2, content="repaired")
    await until(lambda: server.rolls)


async def test_an_invalid_servable_keeps_its_deployed_versions(server, follow, caplog):
    server.want(("net", 1), ("other", 1))
    await follow()
    server.wanted = [RefusedServable("net", "it is a pickle")]
    await until(lambda: server.rolls)
    assert server.rolls == [([], [("other", 1)])]
    assert caplog.text.count("servable net stays as it is: it is a pickle") == 1


async def test_a_failed_scan_changes_no_servable(server, follow, caplog):
    await follow()
    server.wanted = InvalidInputs("no such name")
    await until(lambda: "servables stay as they are: no such name" in caplog.text)
    assert server.rolls == []
    server.want(("net", 1))
    await until(lambda: server.rolls)
    assert caplog.text.count("no such name") == 1


async def test_a_servable_that_failed_at_start_waits_for_a_change(server):
    server.write("broken", 1)
    server.want(("broken", 1))
    await server.begin()
    server.deployed = []
    server.repository.on_failed("broken", StartError("it is cut off"))
    (state,) = await server.repository.index()
    assert state == ModelState("broken", 1, False, False, "it is cut off")
    assert server.failures() == {("broken", "1"): 1}
    await server.repository.load("broken")
    assert server.rolls == [([("broken", 1)], [])]
    assert server.failures() == {("broken", "1"): 0}


async def test_the_metric_shows_a_failed_version_until_a_load_succeeds(server, follow):
    server.want(("net", 1), ("net", 2))
    await follow()
    assert server.failures() == {("net", "1"): 0, ("net", "2"): 0}
    server.error = StartError("the weights are broken")
    server.write("net", 2, content="broken")  # the one of before goes on
    await until(lambda: server.failures() == {("net", "1"): 0, ("net", "2"): 1})
    server.write("net", 3)
    server.want(("net", 1), ("net", 2), ("net", 3))
    await until(lambda: server.failures() == {("net", "1"): 0, ("net", "2"): 1, ("net", "3"): 1})
    server.error = None
    server.write("net", 2, content="repaired")
    await until(lambda: set(server.failures().values()) == {0})


async def test_the_metric_drops_removed_servables(server, follow):
    server.write("broken", 1)
    await follow()
    server.error = StartError("it is cut off")
    server.want(("net", 2), ("broken", 1))
    await until(lambda: server.failures() == {("net", "2"): 0, ("broken", "1"): 1})
    server.want(("net", 2))
    await until(lambda: server.failures() == {("net", "2"): 0})
    with pytest.raises(StartError):
        await server.repository.add(
            "more", lambda: [Deployment(str(server.root), "more", version_number=1)]
        )
    assert server.failures() == {("net", "2"): 0}
