import numpy as np
import pytest

from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError


def add_and_subtract(x, y):
    return x + y, x - y


class Scale:
    made = 0

    def __init__(self):
        Scale.made += 1
        self.is_closed = False

    def __call__(self, batch):
        return 3 * batch

    def close(self):
        self.is_closed = True


def test_a_function_gets_arrays_and_returns_a_tuple_of_arrays(opened):
    backend = opened("python", factory=add_and_subtract)
    total, difference = backend.run([np.array([5, 7]), np.array([2, 3])])
    assert total.tolist() == [7, 10]
    assert difference.tolist() == [3, 4]


def test_inputs_are_named_after_the_parameters_and_outputs_are_unknown(opened):
    (signature,) = opened("python", factory=add_and_subtract).signature
    assert signature.inputs == (TensorSpec("x", None, None), TensorSpec("y", None, None))
    assert signature.outputs == ()


def test_class_is_instantiated_once_called_and_closed(opened):
    before = Scale.made
    backend = opened("python", factory=Scale)
    assert backend.run([np.array([1, 2])])[0].tolist() == [3, 6]
    assert backend.run([np.array([4])])[0].tolist() == [12]
    assert Scale.made == before + 1
    backend.close()
    assert backend._model.is_closed


def test_class_may_declare_its_signature(opened):
    class Typed(Scale):
        signature = Signature(
            (TensorSpec("batch", np.dtype("f4"), (-1, 2)),),
            (TensorSpec("scaled", np.dtype("f4"), (-1, 2)),),
        )

    assert opened("python", factory=Typed).signature == (Typed.signature,)


def test_a_signature_that_does_not_fit_is_refused(opened):
    class Typed(Scale):
        signature = Signature((), ())

    with pytest.raises(StartError, match="should be a Signature with 1 inputs"):
        opened("python", factory=Typed)


def starred(*arrays):
    return arrays


class Fails:
    def __init__(self):
        raise ValueError("no weights here")

    def __call__(self, x):
        return x


class NotCallable:
    pass


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (None, "has no function or class to call"),
        (starred, "Parameter 'arrays' of Python model 'model' is VAR_POSITIONAL"),
        (lambda: 1, "has no parameters"),
        (Fails, "failed to start: ValueError: no weights here"),
        (NotCallable, "has no __call__"),
    ],
)
def test_invalid_factory_is_refused_with_the_reason(opened, factory, text):
    with pytest.raises(StartError, match=text):
        opened("python", factory=factory)


def raising(x):
    raise KeyError("label")


def texts(x):
    return "seven"


@pytest.mark.parametrize(
    ("factory", "text"),
    [(raising, "KeyError: 'label'"), (texts, "output 0 is of type str, not an array")],
)
def test_errors_in_the_model_fail_the_run(opened, factory, text):
    with pytest.raises(StageFailed, match=text):
        opened("python", factory=factory).run([np.zeros(1)])
