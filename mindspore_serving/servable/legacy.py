"""Deprecated calls: one model per servable, one preprocess and one postprocess per method.

Each is an `add_stage` whose number of outputs is counted in the user's source.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import check_int, warn_deprecated
from mindspore_serving.servable.context import AclOptions, GpuOptions
from mindspore_serving.servable.method import stage_on
from mindspore_serving.servable.method_builder import MethodBuilder, building
from mindspore_serving.servable.model import Model, declare_model

_PREPROCESS = "call_preprocess or call_preprocess_pipeline"
_POSTPROCESS = "call_postprocess or call_postprocess_pipeline"
_GROUPS = {  # a method makes at most one call of each group, in the order of the groups
    "call_preprocess": (0, _PREPROCESS),
    "call_preprocess_pipeline": (0, _PREPROCESS),
    "call_servable": (1, "call_servable"),
    "call_postprocess": (2, _POSTPROCESS),
    "call_postprocess_pipeline": (2, _POSTPROCESS),
}


def declare_servable(
    servable_file: str | Sequence[str],
    model_format: str,
    with_batch_dim: bool = True,
    options: AclOptions | GpuOptions | None = None,
    without_batch_dim_inputs: int | Sequence[int] | None = None,
) -> Model:
    """Declare a model.  Deprecated: use `declare_model`, with the same arguments and errors."""
    warn_deprecated("declare_servable", "1.5.0", "declare_model")
    return declare_model(
        servable_file,
        model_format,
        with_batch_dim,
        options,
        without_batch_dim_inputs=without_batch_dim_inputs,
    )


def call_preprocess(preprocess_fun: Callable[..., Any], *args: Any) -> Any:
    """Call a function of one instance, before `call_servable`.  Deprecated: use `add_stage`."""
    return _call_function("call_preprocess", preprocess_fun, args)


def call_preprocess_pipeline(preprocess_fun: Callable[..., Any], *args: Any) -> Any:
    """Call a function of many instances, before `call_servable`.  Deprecated: use `add_stage`."""
    return _call_function("call_preprocess_pipeline", preprocess_fun, args)


def call_postprocess(postprocess_fun: Callable[..., Any], *args: Any) -> Any:
    """Call a function of one instance, after `call_servable`.  Deprecated: use `add_stage`."""
    return _call_function("call_postprocess", postprocess_fun, args)


def call_postprocess_pipeline(postprocess_fun: Callable[..., Any], *args: Any) -> Any:
    """Call a function of many instances, after `call_servable`.  Deprecated: use `add_stage`."""
    return _call_function("call_postprocess_pipeline", postprocess_fun, args)


def call_servable(*args: Any, subgraph: int = 0) -> Any:
    """Call the only declared model.  Deprecated: use `add_stage`.

    Raises RuntimeError if no model or more than one is declared, or it is called twice.
    """
    warn_deprecated("call_servable", "1.5.0", "add_stage")
    builder = building("call_servable")
    outputs_count = _next_outputs_count(builder, "call_servable")
    check_int("subgraph", subgraph, 0)
    model = _only_model(builder)
    return stage_on(builder, model, args, outputs_count=outputs_count, subgraph=subgraph)


def _call_function(name: str, function: Callable[..., Any], args: Sequence[object]) -> Any:
    warn_deprecated(name, "1.5.0", "add_stage")
    builder = building(name)
    return stage_on(
        builder,
        function,
        args,
        outputs_count=_next_outputs_count(builder, name),
        batch_size=0 if name.endswith("_pipeline") else None,
        tag="Preprocess" if "preprocess" in name else "Postprocess",
    )


def _only_model(builder: MethodBuilder) -> Model:
    declaration = builder.declaration
    keys = [declaration.name] if declaration.distributed else list(declaration.models)
    if not keys:
        raise builder.failure(
            "There is no model declared, you can use declare_model to declare models."
        )
    if len(keys) > 1:
        raise builder.failure(
            "There are more than one servable declared when the interface 'call_servable' is used, "
            "use 'add_stage' to replace 'call_servable'"
        )
    return Model(keys[0])


def _next_outputs_count(builder: MethodBuilder, name: str) -> int:
    """Check that `name` may be called here, and count the targets of its assignment."""
    calls = builder.deprecated_calls
    group, label = _GROUPS[name]
    for other in calls:
        other_group, other_label = _GROUPS[other]
        if other_group == group:
            raise builder.failure(f"{label} should not be invoked more than once")
        if other_group > group:
            raise builder.failure(f"{other_label} should be invoked after {name}")
    counts = _count_outputs(builder)
    if len(calls) >= len(counts) or counts[len(calls)][0] != name:
        raise _too_complex(builder, [name], "the call is not in the method's own body")
    calls.append(name)
    return counts[len(calls) - 1][1]


def _count_outputs(builder: MethodBuilder) -> list[tuple[str, int]]:
    """Return the deprecated calls in the method's body, in order, with their numbers of outputs."""
    body = _body_of(builder)
    nodes = [node for statement in body for node in ast.walk(statement)]
    called = [_called_name(node) for node in nodes if isinstance(node, ast.Call)]
    names = [name for name in called if name in _GROUPS]
    counts = []
    for statement in body:
        call = _only_call(builder, statement, names)
        if call is None:
            continue
        name = _called_name(call)
        if not call.args:
            raise builder.failure(f"Invalid '{name}' invoke args, code: {ast.unparse(statement)}")
        counts.append((name, _num_targets(builder, statement, names)))
    if "call_servable" not in names:
        raise builder.failure("Not find the invoke of 'call_servable'")
    return counts


def _body_of(builder: MethodBuilder) -> list[ast.stmt]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(builder.function))).body
    except (OSError, SyntaxError, ValueError) as error:
        raise builder.failure(
            f"Failed to parse method '{builder.name}', its source is not available: {error}"
        ) from error
    if not isinstance(tree, ast.FunctionDef):
        raise _too_complex(builder, ["call_servable"], ast.unparse(tree))
    first = tree.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return tree.body[1:] if is_docstring else tree.body


def _only_call(builder: MethodBuilder, statement: ast.stmt, names: list[str]) -> ast.Call | None:
    """Return the deprecated call that a statement assigns or returns; None without any call."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return):
        raise _too_complex(builder, names, ast.unparse(statement))
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if not calls:
        return None
    if len(calls) > 1 or statement.value is not calls[0] or _called_name(calls[0]) not in _GROUPS:
        raise _too_complex(builder, names, ast.unparse(statement))
    return calls[0]


def _num_targets(builder: MethodBuilder, statement: ast.stmt, names: list[str]) -> int:
    if isinstance(statement, ast.Return):
        return len(builder.outputs)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    target = targets[0] if targets else None
    if not isinstance(target, ast.Tuple | ast.List):
        return 1
    if any(isinstance(item, ast.Starred) for item in target.elts):
        raise _too_complex(builder, names, ast.unparse(statement))
    return len(target.elts)


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _too_complex(builder: MethodBuilder, names: list[str], code: str) -> InvalidInputs:
    shown = ", ".join(dict.fromkeys(names))
    return InvalidInputs(
        f"Failed to parse method '{builder.name}', complex statements such as conditions and loops "
        f"are not supported in register_method when the interface '{shown}' is used, use "
        f"'add_stage' to replace '{shown}', code: {code}"
    )
