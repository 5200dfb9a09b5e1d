"""The history of an hour: what it keeps, and how much."""

from mindspore_serving.master import history
from mindspore_serving.master.history import COLUMNS, MAX_ROWS, MAX_SERVABLES, History


def row(name: str = "a", **engine: int) -> dict:
    found = {"name": name, "version": 1, "p50_ms": None, "p99_ms": 2.0}
    found["requests"] = {"running": 3, "waiting": 4, "total": 5}
    return {**found, "engine": engine} if engine else found


def test_each_look_is_a_row_with_its_age() -> None:
    past = History(lambda: [row(num_running=7)])
    past.sample(10.0)
    past.sample(15.0)
    shown = past.show(20.0)
    (one,) = shown["servables"]
    assert [age for age, *_ in one["rows"]] == [10.0, 5.0]
    found = dict(zip(shown["columns"], one["rows"][0], strict=True))
    assert (found["requests.waiting"], found["engine.num_running"]) == (4, 7)
    assert (found["p50_ms"], found["engine.num_steps"]) == (None, None)


def test_the_history_keeps_an_hour() -> None:
    past = History(lambda: [row()])
    for now in range(MAX_ROWS + 3):
        past.sample(float(now))
    (one,) = past.show(float(MAX_ROWS + 2))["servables"]
    assert len(one["rows"]) == MAX_ROWS
    assert one["rows"][0] == [MAX_ROWS - 1, *one["rows"][-1][1:]]
    assert MAX_ROWS * history.SECONDS == 3600


def test_the_history_has_max_servables_and_drops_removed_servables() -> None:
    names = [f"s{number}" for number in range(MAX_SERVABLES + 1)]
    past = History(lambda: [row(name) for name in names])
    past.sample(0.0)
    assert [one["name"] for one in past.show(0.0)["servables"]] == names[:-1]
    del names[0]
    past.sample(1.0)
    assert [one["name"] for one in past.show(1.0)["servables"]] == names


def test_a_copy_of_the_history_does_not_change() -> None:
    past = History(lambda: [row()])
    past.sample(0.0)
    copied = past.copy()
    past.sample(1.0)
    assert len(copied.show(1.0)["servables"][0]["rows"]) == 1
    assert len(past.show(1.0)["servables"][0]["rows"]) == 2


def test_a_classic_servable_has_no_numbers_of_an_engine() -> None:
    past = History(lambda: [row()])
    past.sample(0.0)
    (one,) = past.show(0.0)["servables"]
    engine = [at for at, name in enumerate(COLUMNS, 1) if name.startswith("engine.")]
    assert {one["rows"][0][at] for at in engine} == {None}
