"""Python functions and classes as models, which are called with complete batches."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import SourceOptions, error_text
from mindspore_serving.core.value import Signature, TensorSpec, to_value
from mindspore_serving.errors import StageFailed, StartError


class PythonBackend:
    """A model that is `spec.factory`: a function, or a class that is instantiated once at load.

    It gets one array per input and returns an array, or a tuple or list of arrays.  Inputs are
    named after its parameters.  Shapes, types and outputs are unknown, unless it has an attribute
    `signature` (a `Signature`).  A method `close`, if the class has one, is called at the end.
    """

    def __init__(self, model: Callable[..., Any], signature: Signature) -> None:
        self._model = model
        self.signature = (signature,)  # without outputs if only a run shows how many

    @classmethod
    def load(cls, source: ModelSource) -> "PythonBackend":
        """Create the model.  Raises StartError: no factory, bad parameters, failed `__init__`."""
        factory, key = source.spec.factory, source.spec.key
        if factory is None or not callable(factory):
            raise StartError(f"Python model '{key}' has no function or class to call")
        SourceOptions(source).report_ignored()
        model = _instantiate(factory, key) if inspect.isclass(factory) else factory
        inputs = _inputs(model, key)
        signature = getattr(model, "signature", None)
        if signature is None:
            return cls(model, Signature(inputs, ()))
        if not isinstance(signature, Signature) or len(signature.inputs) != len(inputs):
            raise StartError(
                f"The attribute 'signature' of Python model '{key}' should be a Signature with "
                f"{len(inputs)} inputs, one for each parameter of the model"
            )
        return cls(model, signature)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Call the model; see `Backend.run`.  `subgraph` is 0.

        Raises StageFailed for every error of the model.
        """
        try:
            result = self._model(*inputs)
        except Exception as error:
            raise StageFailed(f"{type(error).__name__}: {error_text(error)}") from error
        results = result if isinstance(result, tuple | list) else (result,)
        expected = len(self.signature[0].outputs)
        if expected and len(results) != expected:
            raise StageFailed(f"{len(results)} outputs returned, the signature has {expected}")
        return [_array(index, item) for index, item in enumerate(results)]

    def close(self) -> None:
        """Call the model's `close`, if it has one."""
        close = getattr(self._model, "close", None)
        if callable(close):
            close()


def _instantiate(factory: Callable[..., Any], key: str) -> Callable[..., Any]:
    try:
        model: object = factory()
    except Exception as error:
        raise StartError(
            f"Python model '{key}' failed to start: {type(error).__name__}: {error_text(error)}"
        ) from error
    if not callable(model):
        raise StartError(f"Python model '{key}' has no __call__")
    return model


def _inputs(model: Callable[..., Any], key: str) -> tuple[TensorSpec, ...]:
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError) as error:
        raise StartError(f"The parameters of Python model '{key}' cannot be read") from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise StartError(
                f"Parameter '{parameter.name}' of Python model '{key}' is {parameter.kind.name}; "
                "only positional parameters are accepted, one per input"
            )
    if not parameters:
        raise StartError(f"Python model '{key}' has no parameters: a model has at least one input")
    return tuple(TensorSpec(parameter.name, None, None) for parameter in parameters)


def _array(index: int, item: object) -> Array:
    value = to_value(item)
    if isinstance(value, np.ndarray):
        return value
    raise StageFailed(f"output {index} is of type {type(item).__name__}, not an array")
