"""The history of an hour: what it keeps, and how much."""

from mindspore_serving.master import history
from mindspore_serving.master.history import COLUMNS, MOST_ROWS, MOST_SERVABLES, History


def row(name: str = "a", **engine: int) -> dict:
    found = {"name": name, "version": 1, "p50_ms": None, "p99_ms": 2.0}
    found["requests"] = {"running": 3, "waiting": 4, "total": 5}
    return {**found, "engine": engine} if engine else found


def test_each_look_is_a_row_with_its_age() -> None:
    past = History(lambda: [row(num_running=7)])
    past.look(10.0)
    past.look(15.0)
    shown = past.show(20.0)
    (one,) = shown["servables"]
    assert [age for age, *_ in one["rows"]] == [10.0, 5.0]
    found = dict(zip(shown["columns"], one["rows"][0], strict=True))
    assert (found["requests.waiting"], found["engine.num_running"]) == (4, 7)
    assert (found["p50_ms"], found["engine.num_steps"]) == (None, None)


def test_it_keeps_an_hour_and_no_more() -> None:
    past = History(lambda: [row()])
    for now in range(MOST_ROWS + 3):
        past.look(float(now))
    (one,) = past.show(float(MOST_ROWS + 2))["servables"]
    assert len(one["rows"]) == MOST_ROWS
    assert one["rows"][0] == [MOST_ROWS - 1, *one["rows"][-1][1:]]
    assert MOST_ROWS * history.SECONDS == 3600


def test_it_keeps_so_many_servables_and_forgets_those_that_are_gone() -> None:
    names = [f"s{number}" for number in range(MOST_SERVABLES + 1)]
    past = History(lambda: [row(name) for name in names])
    past.look(0.0)
    assert [one["name"] for one in past.show(0.0)["servables"]] == names[:-1]
    del names[0]
    past.look(1.0)
    assert [one["name"] for one in past.show(1.0)["servables"]] == names


def test_a_copy_stays_as_it_was() -> None:
    past = History(lambda: [row()])
    past.look(0.0)
    copied = past.copy()
    past.look(1.0)
    assert len(copied.show(1.0)["servables"][0]["rows"]) == 1
    assert len(past.show(1.0)["servables"][0]["rows"]) == 2


def test_a_classic_servable_has_no_numbers_of_an_engine() -> None:
    past = History(lambda: [row()])
    past.look(0.0)
    (one,) = past.show(0.0)["servables"]
    engine = [at for at, name in enumerate(COLUMNS, 1) if name.startswith("engine.")]
    assert {one["rows"][0][at] for at in engine} == {None}
