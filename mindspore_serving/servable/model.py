"""`declare_model` records a model; `Model.call` runs it from inside a stage function.

It loads and runs nothing: a worker binds the function that runs models (`bind_runner`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving import log
from mindspore_serving.core.declaration import Declaration, DeclaredModel
from mindspore_serving.core.network import MODES, parse_spec, spec_text
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, did_you_mean
from mindspore_serving.servable.backend_choice import check_backend
from mindspore_serving.servable.check import (
    as_int_tuple,
    as_str_tuple,
    check_axes,
    check_bool,
    check_int,
    check_str,
)
from mindspore_serving.servable.context import AclOptions, Context, GpuOptions
from mindspore_serving.servable.instances import call_instances
from mindspore_serving.servable.method_builder import current
from mindspore_serving.servable.network_file import NETWORKS

Array: TypeAlias = "np.ndarray[Any, Any]"
Runner: TypeAlias = Callable[[str, int, list[tuple[Value, ...]]], list[tuple[Array, ...]]]

_FORMATS = {
    "om": "OM",
    "mindir": "MindIR",
    "mindir_lite": "MindIR_Lite",
    "onnx": "ONNX",
    "pytorch": "PyTorch",
    "openvino": "OpenVINO",
    "sklearn": "SKLearn",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
    "mindspore": "MindSpore",
    "python": "Python",
}
_runner: Runner | None = None


def bind_runner(runner: Runner | None) -> None:
    """Set the function that `Model.call` runs; None removes it.

    `runner(model_key, subgraph, instances)` gets one tuple of inputs per instance and returns one
    tuple of output arrays per instance, in order. It raises ServingError for a model that is not
    loaded, a sub-graph that does not exist, and wrong counts, shapes or dtypes.
    """
    global _runner
    _runner = runner


@dataclass(frozen=True, slots=True)
class Model:
    """Declared model: a stage for `add_stage`, or called by a stage function.

    Made by `declare_model`; `model_key` is its file names joined by ";".
    """

    model_key: str

    def __post_init__(self) -> None:
        check_str("model_key", self.model_key)

    def call(self, *args: Any, subgraph: int = 0) -> Any:
        """Run the model now, from inside a stage function, and wait for the outputs.

        `call(x1, x2)` runs one instance and returns its outputs: an array if the model has one
        output, else a tuple of arrays.  `call([[x1, x2], [x1, x2]])`, one argument that is a list
        or tuple, runs any number of instances and returns a tuple with one tuple of outputs for
        each; the server splits them into batches of the model.  An input is an array, a number, a
        str or bytes, with the shape of one instance (without the batch dimension, if the model was
        declared with one); outputs are arrays with the shape of one instance.

        `subgraph` is the index of a file of `declare_model`.

        Raises RuntimeError for no inputs, no instances, an unknown model, and wrong inputs.
        """
        check_int("subgraph", subgraph, 0)
        run = None if _runner is None else partial(_runner, self.model_key, subgraph)
        return call_instances(args, run, self._label(subgraph))

    def _label(self, subgraph: int) -> str:
        suffix = f", subgraph={subgraph}" if subgraph else ""
        return f"Model({self.model_key}{suffix}).call()"


def declare_model(  # noqa: PLR0917  (the order is the original's)
    model_file: str | Sequence[str] | Callable[..., Any],
    model_format: str,
    with_batch_dim: bool | None = True,
    options: AclOptions | GpuOptions | None = None,
    without_batch_dim_inputs: int | Sequence[int] | None = None,
    context: Context | None = None,
    config_file: str | None = None,
    *,
    backend: str | None = None,
    allow_pickle: bool = False,
    batch_axis: Mapping[str, int] | None = None,
    weights: str = "",
    arguments: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    mode: str = "",
) -> Model:
    """Declare a model in servable_config.py; every worker that needs it loads it at start.

    Args:
        model_file: A file name in the version directory, or a tuple or list of distinct names:
            the sub-graphs 0, 1, ... of one model.  With format "Python", a function or a class;
            with "MindSpore" and "PyTorch" also that of a network.
        model_format: "MindIR", "MindIR_Lite" (or "MindIR_Opt"), "OM", "ONNX", "PyTorch" (.pt2 or
            TorchScript), "OpenVINO" (.xml, and TensorFlow, TensorFlow Lite and Paddle files),
            "SKLearn", "XGBoost", "LightGBM", "CatBoost", "MindSpore" (a network), "Python", or a
            name of entry point group "mindspore_serving.backends".  Case does not matter.
        with_batch_dim: Whether first dimensions count instances; None: the model's shapes decide.
        options: Deprecated, use `context`.
        without_batch_dim_inputs: Indices of inputs that have no batch dimension nevertheless.
        context: Threads, and options per type of device.
        config_file: A configuration file for the backend; relative to the servable's directory.
        backend: "mindspore" or "openvino" for MindIR, "onnxruntime" or "openvino" for ONNX.
        allow_pickle: Whether a scikit-learn model may be a pickle, which can run any code.
        batch_axis: Axes that count instances, as {"state": 1}; -1 for an input without, default 0.
        weights: Weights of a network in code, a file of the version directory.
        arguments: Arguments of its class or function, by name.
        inputs: Its inputs, as {"x": "float32[-1,28,28]"} with -1 for any size, or example batches.
        mode: "graph" or "pynative", of a network of MindSpore.

    Returns the model, a stage or callable.  Raises RuntimeError for a wrong argument or place.
    """
    declaration = current("declare_model")
    name = _checked_format(model_format)
    factory, files = _factory_or_files(model_file, name)
    key = factory.__name__ if factory is not None else ";".join(files)
    _check_unused(declaration, key, files)
    network = _network(factory, name, weights, arguments=arguments, inputs=inputs, mode=mode)
    code = {"key": key, "format": name, "files": files, "factory": factory} | network
    declaration.models[key] = DeclaredModel(
        with_batch_dim=_checked_batch_dim(with_batch_dim),
        without_batch_dim_inputs=_checked_indices(without_batch_dim_inputs),
        batch_axis=check_axes("batch_axis", batch_axis or {}),
        options=_checked_options(context, options),
        config_file=None if config_file is None else check_str("config_file", config_file),
        backend=check_backend(backend, name),
        allow_pickle=check_bool("allow_pickle", allow_pickle),
        **code,
    )
    return Model(key)


def _network(
    factory: Callable[..., Any] | None,
    model_format: str,
    weights: object,
    *,
    arguments: Mapping[str, Any] | None,
    inputs: Mapping[str, Any] | None,
    mode: object,
) -> dict[str, Any]:
    """Return the fields of a declaration that are of a network in code; none of other models."""
    if factory is None or model_format not in NETWORKS:
        if weights or arguments or inputs or mode:
            raise InvalidInputs(
                "Parameters 'weights', 'arguments', 'inputs' and 'mode' are for a network in code: "
                "'model_file' is its class, and 'model_format' MindSpore or PyTorch"
            )
        return {}
    if mode not in ("", *MODES):
        raise InvalidInputs(f"Parameter 'mode' is {mode!r}, expected one of {', '.join(MODES)}")
    texts = {
        name: spec_text(value) if isinstance(value, np.ndarray) else str(value)
        for name, value in (inputs or {}).items()
    }
    return {
        "format": NETWORKS[model_format],
        "files": (check_str("weights", weights),) if weights else (),
        "arguments": dict(arguments or {}),
        "inputs": tuple(parse_spec(name, text) for name, text in texts.items()),
        "mode": mode,
    }


def _checked_format(model_format: object) -> str:
    text = check_str("model_format", model_format)
    name = text.lower().replace("mindir_opt", "mindir_lite")
    if name in _FORMATS or name in (registered := _registered_formats()):
        return name
    known = [*_FORMATS.values(), *sorted(registered)]
    raise InvalidInputs(
        "Parameter 'model_format' is wrong: model format can only be OM, MindIR or MindIR_Lite, "
        f"case ignored, or {', '.join(known[3:])}, but given '{text}'{did_you_mean(text, known)}"
    )


def _checked_batch_dim(value: object) -> bool | None:
    return None if value is None else check_bool("with_batch_dim", value)


def _checked_indices(value: object) -> tuple[int, ...]:
    return () if value is None else as_int_tuple("without_batch_dim_inputs", value, 0)


def _registered_formats() -> set[str]:
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return {entry.name.lower() for entry in entry_points(group="mindspore_serving.backends")}


def _factory_or_files(
    model_file: object, name: str
) -> tuple[Callable[..., Any] | None, tuple[str, ...]]:
    is_code = inspect.isfunction(model_file) or inspect.isclass(model_file)
    if name not in ("python", "mindspore") and not (is_code and name in NETWORKS):
        return None, as_str_tuple("model_file", model_file)
    if callable(model_file) and is_code:
        return model_file, ()
    raise InvalidInputs(
        "Parameter 'model_file' should be a Python function or class when 'model_format' is "
        f"{_FORMATS[name]}, but actually {type(model_file)}"
    )


def _check_unused(declaration: Declaration, key: str, files: tuple[str, ...]) -> None:
    if declaration.distributed is not None:
        raise InvalidInputs(
            "Declare model failed, servable has already been declared as distributed servable"
        )
    failed = f"Declare model [{key}] failed,"
    used = {file for spec in declaration.models.values() for file in spec.files}
    for file in files:
        if file in used:
            raise InvalidInputs(f"{failed} model file '{file}' has already been used")
    if key in declaration.models:
        raise InvalidInputs(f"{failed} the same model has already been declared")


def _checked_options(context: object, options: object) -> dict[str, Any]:
    if context is not None and not isinstance(context, Context):
        raise InvalidInputs(f"Parameter 'context' should be Context, but gotten {type(context)}")
    if options is not None and not isinstance(options, GpuOptions | AclOptions):
        raise InvalidInputs(
            "Parameter 'options' should be None, GpuOptions or AclOptions, but gotten "
            f"{type(options)}"
        )
    if context is not None:
        if options is not None:
            log.warning("declare_model was given 'context' too: 'options' is ignored")
        return context.to_options()
    return options.context.to_options() if options is not None else {}
