"""`register_method` and `add_stage`: a user's function, run once with placeholders, is a graph.

It does not know what a stage computes, nor when.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from types import FunctionType
from typing import Any, TypeVar

from mindspore_serving.core import examples
from mindspore_serving.core.declaration import Declaration
from mindspore_serving.core.examples import Example
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.value import to_value
from mindspore_serving.errors import InvalidInputs, StageFailed
from mindspore_serving.servable.builtins import BUILTINS
from mindspore_serving.servable.check import as_str_tuple, check_bool, check_int, check_str
from mindspore_serving.servable.hf_model import HFModel, task_stage
from mindspore_serving.servable.language import LANGUAGE, LanguageModel
from mindspore_serving.servable.method_builder import MethodBuilder, building, current
from mindspore_serving.servable.model import Model
from mindspore_serving.servable.servable_method import ServableMethod

_Function = TypeVar("_Function", bound=Callable[..., Any])


def register_method(
    output_names: str | Sequence[str],
    *,
    retry: bool = True,
    example: Mapping[str, Any] | None = None,
    cache: bool | None = None,
) -> Callable[[_Function], _Function]:
    """Register a function of servable_config.py as a method, which clients call.  A decorator.

    The method has the function's name, its inputs are the function's parameters, its outputs have
    `output_names` (a str, or distinct strs).  The body runs once, when servable_config.py is
    imported, with placeholders instead of data: it passes them to `add_stage` and returns one for
    each output name.  Inputs may be returned unchanged.

        @register.register_method(output_names=["y"])
        def add_cast(x1, x2):
            x1, x2 = register.add_stage(to_float32, x1, x2, outputs_count=2)
            y = register.add_stage(model, x1, x2, outputs_count=1)
            return y

    With `retry=False`, a request whose worker died is not retried, so that its work is not done
    twice.  `cache` says whether the operator's cache of answers (`cache_mb`) has those of the
    method; default: unless `retry=False`.
    `example` has values of inputs, by name, which `serve`, the web page and /docs show in
    commands: a number, a text, bytes, or an array of at most 32 elements or of equal elements.  An
    input without one gets a value by the model's dtype and shape, or, if it is a function's, by
    its annotation (`str`, `bytes`, `int`, `float` or `bool`) or its name.

    The decorator returns the function itself.  Raises RuntimeError for a parameter that is *args,
    **kwargs or keyword-only, a return value that is no placeholder, a wrong number of them, a
    name that is already registered, and an example of no input or of a value that is too large.
    """
    if isinstance(output_names, FunctionType):
        name = output_names.__name__
        raise InvalidInputs(
            f"register_method needs the names of the outputs of '{name}': "
            "@register.register_method(output_names=[...])"
        )
    outputs = as_str_tuple("output_names", output_names)
    check_bool("retry", retry)
    check_bool("cache", bool(cache) if cache is None else cache)

    def register(function: _Function) -> _Function:
        declaration = current("register_method")
        builder = MethodBuilder(declaration, function, input_names(function), outputs)
        returns = builder.run()
        if len(returns) != len(outputs):
            raise builder.failure(
                f"Method return output size {len(returns)} not match registered {len(outputs)}"
            )
        stages = tuple(builder.stages)
        shown = _examples(builder, example or {})
        graph = builder.name, builder.inputs, outputs, stages, returns
        method = Method(*graph, retry, examples=shown, cache=cache)
        record(declaration, method)
        return function

    return register


def add_stage(
    stage: Model | LanguageModel | HFModel | ServableMethod | Callable[..., Any] | str,
    *args: Any,
    outputs_count: int,
    batch_size: int | None = None,
    tag: str | None = None,
) -> Any:
    """Add a stage to the method being registered; return placeholders for its outputs.

    Args:
        stage: A declared model, a Python function, a method of another servable (`method`), or a
            built-in: "argmax_cpp" (index of the largest).
        args: Placeholders: inputs of the method or outputs of earlier stages.
        outputs_count: Number of outputs, int >= 1.
        batch_size: For functions.  None: the function gets the inputs of one instance as separate
            arguments and returns its outputs.  An int: it gets a tuple of instances, each a tuple
            of inputs, and returns or yields the outputs of each in order; >= 1 is the max number
            of instances per call, 0 follows the batch size of the method's models.
        tag: Name of the stage in errors; default "Function 'servable.name'" or "Model 'key'".

    Returns one placeholder, or a tuple of them if `outputs_count` is more than 1.

    A function has the id "servable.name"; a second, different function of the same name (say, a
    second lambda) "servable.name#2", a third "servable.name#3".  Raises
    RuntimeError if a function's inputs, outputs or use of batches differ from an earlier use.
    """
    builder = building("add_stage")
    return stage_on(
        builder,
        stage,
        args,
        outputs_count=check_int("outputs_count", outputs_count, 1),
        batch_size=None if batch_size is None else check_int("batch_size", batch_size, 0),
        tag=None if tag is None else check_str("tag", tag),
    )


def stage_on(
    builder: MethodBuilder,
    target: object,
    args: Sequence[object],
    *,
    outputs_count: int,
    batch_size: int | None = None,
    tag: str | None = None,
    subgraph: int = 0,
) -> Any:
    """Add a stage with checked arguments, and for any sub-graph; see `add_stage`."""
    slots = builder.slots_of(args, "Each value of parameter *args")
    outputs = builder.next_slots(outputs_count)
    if isinstance(target, Model):
        key = _declared_key(builder, target)
        label = tag or f"Model '{key}'"
        return builder.add(Stage(StageKind.MODEL, key, slots, outputs, label, subgraph=subgraph))
    if isinstance(target, LanguageModel):
        _check_language(builder, target, len(slots), outputs_count)
        label = tag or "Language model"
        return builder.add(Stage(StageKind.LANGUAGE, LANGUAGE, slots, outputs, label, streams=True))
    if isinstance(target, HFModel):
        return builder.add(task_stage(builder, target, slots, outputs, tag))
    if isinstance(target, ServableMethod):
        return _servable_stage(builder, target, slots, outputs, tag)
    if isinstance(target, str):
        _check_builtin(builder, target, len(slots), outputs_count)
        label = tag or f"Function '{target}'"
        return builder.add(Stage(StageKind.BUILTIN, target, slots, outputs, label))
    if not inspect.isfunction(target):
        raise builder.failure(
            "the parameter 'stage' of add_stage must be function or Model returned by "
            f"declare_model, now is {type(target)}; wrap any other callable in a function"
        )
    _check_arity(target, len(slots), batch_size)
    name = function_id(builder.declaration, target)
    label = tag or f"Function '{name}'"
    streams = batch_size is None and inspect.isgeneratorfunction(target)
    kind = StageKind.FUNCTION
    return builder.add(Stage(kind, name, slots, outputs, label, batch_size, streams=streams))


def _servable_stage(
    builder: MethodBuilder,
    target: ServableMethod,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    tag: str | None,
) -> Any:
    """Add the call of another servable's method, or the stages of a method of this servable."""
    if target.servable != builder.declaration.name:
        name = f"{target.servable}.{target.method}"
        return builder.add(
            Stage(
                StageKind.SERVABLE,
                name,
                inputs,
                outputs,
                tag or f"Method {target.label}",
                streams=target.streams,
                version=target.version,
            )
        )
    method = builder.declaration.methods.get(target.method)
    if method is None or target.version:
        raise builder.failure(
            f"method {target.label} is of this servable, so it must be registered above, and be "
            "named without a version"
        )
    used, registered = (len(inputs), len(outputs)), (len(method.inputs), len(method.outputs))
    if used != registered:
        raise builder.failure(
            f"method {target.label} has {registered[0]} input(s) and {registered[1]} output(s), "
            f"but add_stage was given {used[0]} and {used[1]}"
        )
    return builder.add_stages_of(method, inputs)


def function_id(declaration: Declaration, function: Callable[..., Any]) -> str:
    """Return the id of `function` in its servable, assigned at first use; ids are unique."""
    base = f"{declaration.name}.{function.__name__}"
    for number in count(1):
        name = base if number == 1 else f"{base}#{number}"
        if declaration.functions.setdefault(name, function) is function:
            break
    return name


def input_names(function: object) -> tuple[str, ...]:
    """Return the parameters of a method's function; raises InvalidInputs for *args and similar."""
    if not inspect.isfunction(function):
        raise InvalidInputs(f"A method should be a Python function, but actually {type(function)}")
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            kind = parameter.kind.name
            raise InvalidInputs(f"'{function.__name__}' input {name} cannot be {kind} !")
    return tuple(parameters)


def _examples(builder: MethodBuilder, values: Mapping[str, Any]) -> dict[str, Example]:
    """Return the declared examples, and those by annotations.  Raises InvalidInputs."""
    shown = dict(_by_annotation(builder))
    for name, value in values.items():
        if name not in builder.inputs:
            known = ", ".join(f"'{known}'" for known in builder.inputs)
            raise builder.failure(f"'example' has '{name}', but its inputs are {known}")
        try:
            shown[name] = examples.declared(name, to_value(value))
        except StageFailed as error:
            raise builder.failure(f"example of input '{name}': {error}") from None
    return shown


def _by_annotation(builder: MethodBuilder) -> Iterator[tuple[str, Example]]:
    """Iterate over annotated inputs, but for those of models, which define their inputs."""
    of_models = {slot for s in builder.stages if s.kind is StageKind.MODEL for slot in s.inputs}
    parameters = inspect.signature(builder.function).parameters
    for slot, (name, parameter) in enumerate(parameters.items()):
        known = examples.annotated(name, parameter.annotation)
        if known is not None and slot not in of_models:
            yield name, known


def record(declaration: Declaration, method: Method) -> None:
    """Add `method` to the declaration.  Raises InvalidInputs if its name is taken."""
    if method.name in declaration.methods:
        raise InvalidInputs(f"Method {method.name} has been registered more than once.")
    declaration.methods[method.name] = method


def _declared_key(builder: MethodBuilder, model: Model) -> str:
    declaration = builder.declaration
    is_distributed = declaration.distributed and model.model_key == declaration.name
    if model.model_key not in declaration.models and not is_distributed:
        raise builder.failure(
            "the parameter 'stage' of add_stage must be function or Model returned by "
            f"declare_model, now is Model('{model.model_key}'), which is not declared"
        )
    return model.model_key


def _check_language(
    builder: MethodBuilder, model: LanguageModel, num_inputs: int, num_outputs: int
) -> None:
    spec = builder.declaration.language
    if spec is None or spec.path != model.path:
        raise builder.failure(f"{model} is not declared in this servable_config.py")
    if num_inputs not in (1, 2) or num_outputs not in (1, 2):
        raise builder.failure(
            "a language model takes a prompt and, optionally, parameters as JSON, and returns the "
            f"text and, optionally, the finish reason; add_stage was given {num_inputs} input(s) "
            f"and {num_outputs} output(s)"
        )


def _check_builtin(builder: MethodBuilder, name: str, num_inputs: int, num_outputs: int) -> None:
    if name not in BUILTINS:
        known = ", ".join(f"'{known}'" for known in BUILTINS)
        raise builder.failure(f"Function '{name}' is not defined, built-in stages are {known}")
    _, inputs, outputs = BUILTINS[name]
    if (num_inputs, num_outputs) != (inputs, outputs):
        raise builder.failure(
            f"Function '{name}' has {inputs} input(s) and {outputs} output(s), but add_stage was "
            f"given {num_inputs} and {num_outputs}"
        )


def _check_arity(function: Callable[..., Any], num_inputs: int, batch_size: int | None) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(*range(num_inputs if batch_size is None else 1))
    except TypeError as error:
        expected = f"the count {num_inputs} registered in method"
        if batch_size is not None:
            expected = "the one argument that 'batch_size' gives it, the tuple of instances"
        raise InvalidInputs(
            f"function {function.__name__} input args count {len(signature.parameters)} not match "
            f"{expected}"
        ) from error
