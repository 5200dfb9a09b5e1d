"""declare_state in a servable_config.py: what is declared, and what is refused."""

import numpy as np
import pytest

from mindspore_serving.core.declaration import Declaration
from mindspore_serving.servable.method_builder import declaring
from mindspore_serving.server import register


def add(state, x):
    return state + x


def declared(body, name="m"):
    declaration = Declaration("toy")

    def m(x):
        return body(x)

    m.__name__ = name
    with declaring(declaration):
        register.register_method(output_names=["y"])(m)
    return declaration.methods[name]


def test_a_state_has_the_slots_behind_the_inputs():
    def body(x):
        state = register.declare_state("s", (2, 3), "int32", initial=[[1, 2, 3], [4, 5, 6]])
        y = register.add_stage(add, state, x, outputs_count=1)
        state.update(y)
        return y

    method = declared(body)
    (state,) = method.states
    assert (state.slot, state.next_slot, method.needs_sequence) == (1, 2, True)
    np.testing.assert_array_equal(state.initial, np.int32([[1, 2, 3], [4, 5, 6]]))
    assert (method.stages[0].inputs, method.returns) == ((1, 0), (2,))


def state_of(*arguments, **options):
    def body(x):
        state = register.declare_state(*arguments, **options)
        y = register.add_stage(add, state, x, outputs_count=1)
        state.update(y)
        return y

    return declared(body)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("s", 3, "text"), "the dtype of state 's' is 'text', expected one of numbers"),
        (("s", 3, "str"), "the dtype of state 's' is 'str', expected one of numbers"),
        (("s", (3, -1)), "shape"),
        (("s", "3"), "shape"),
        (("", 3), "name"),
        (("s", 3, "int8", [1, 2]), "the initial value of state 's' does not fit int8 \\[3\\]"),
        (("s", 3, "int8", "x"), "the initial value of state 's' does not fit"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text):
    with pytest.raises(RuntimeError, match=text):
        state_of(*arguments)


def test_a_state_that_is_never_updated_is_refused():
    def body(x):
        state = register.declare_state("s", 3)
        return register.add_stage(add, state, x, outputs_count=1)

    with pytest.raises(RuntimeError, match="state 's' is never updated: call its method update"):
        declared(body)


def test_a_state_behind_a_stage_or_updated_or_declared_twice_is_refused():
    def late(x):
        y = register.add_stage(add, x, x, outputs_count=1)
        register.declare_state("s", 3)
        return y

    def twice(x):
        state = register.declare_state("s", 3)
        state.update(x)
        state.update(x)

    def again(x):
        register.declare_state("s", 3)
        register.declare_state("s", 3)

    for body, text in (
        (late, "has to be before the first add_stage"),
        (twice, "state 's' is updated twice"),
        (again, "state 's' is declared twice"),
    ):
        with pytest.raises(RuntimeError, match=text):
            declared(body)


def test_a_method_with_a_state_cannot_stream():
    def pieces(state, x):
        yield state, x

    def body(x):
        state = register.declare_state("s", 3)
        y, new = register.add_stage(pieces, state, x, outputs_count=2)
        state.update(new)
        return y

    with pytest.raises(RuntimeError, match="a method with a state cannot stream its answers"):
        declared(body)
