"""Cases of what Python code decides by numbers, of which some depend on the data."""

import numpy as np

from tests.mindir.drawing import Case


def number(d):
    return d.whole((), 1, 3, np.int64)


def of_two(reference):
    """A number of the data and another one, or one that is known."""

    def make(d):
        if d.flag():
            return Case((number(d), number(d)), reference=reference)
        return Case((number(d),), (d.number(1, 3),), reference=reference)

    return make


def of_flags(reference):
    def make(d):
        if d.flag():
            return Case((d.bools(()), d.bools(())), reference=reference)
        return Case((d.bools(()),), (d.flag(),), reference=reference)

    return make


def of_tuples(d):
    other = (d.number(1, 3), d.number(1, 3), *((1,) if d.flag() else ()))
    return Case(((number(d), number(d)),), (other,), reference=lambda x, y: tuple(map(int, x)) == y)


def within(d):
    choices = tuple(d.number(1, 5) for _ in range(d.number(0, 3)))
    return Case((number(d),), (choices,), reference=lambda x, y: int(x) in y)


def same(answer):
    """The same number, or the same of True and False; never one of another type."""

    def make(d):
        x = d.choice(number(d), d.bools(()))
        other = d.choice(d.number(1, 3), d.flag(), None, "text")
        of_one_type = isinstance(other, bool if x.dtype == bool else int) and (
            isinstance(other, bool) == (x.dtype == bool)
        )
        return Case(
            (x,), (other,), reference=lambda x, y: (of_one_type and x.item() == y) == answer
        )

    return make


CASES = {
    **dict.fromkeys(("list_equal", "tuple_equal"), of_tuples),
    **dict.fromkeys(
        ("BoolNot", "bool_not"), lambda d: Case((d.bools(()),), reference=np.logical_not)
    ),
    "BoolAnd": of_flags(np.logical_and),
    "BoolOr": of_flags(np.logical_or),
    "InSequence": within,
    "ScalarNe": of_two(lambda x, y: x != y),
    "is_": same(True),
    "is_not": same(False),
}
