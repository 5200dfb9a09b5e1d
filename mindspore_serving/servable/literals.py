"""Literal values in Python source, which is read and never run.

Of its assignments those count whose values are literals, or names of such.
"""

import ast
from typing import Any

from mindspore_serving.errors import InvalidInputs


def read_assignments(text: str) -> dict[str, Any]:
    """Return the literal values of a module's names.  Raises InvalidInputs if it is not Python."""
    try:
        return names_of(ast.parse(text))
    except (SyntaxError, ValueError) as error:
        raise InvalidInputs(f"this is not Python: {error}") from None


def names_of(tree: ast.Module) -> dict[str, Any]:
    """Return the literal values of a module's names."""
    names: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
            try:
                names[target.id] = value_of(node.value, names)
            except (ValueError, KeyError, IndexError, TypeError):
                names.pop(target.id, None)  # computed, so its value is unknown here
    return names


def value_of(node: ast.expr | None, names: dict[str, Any]) -> Any:
    """Evaluate a literal.  Raises ValueError, KeyError, IndexError or TypeError for others."""
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [value_of(item, names) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {value_of(key, names): value_of(value, names) for key, value in pairs}
    if isinstance(node, ast.Subscript):
        return value_of(node.value, names)[value_of(node.slice, names)]
    if isinstance(node, ast.Attribute):
        return value_of(node.value, names)[node.attr]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return value_of(node.left, names) + value_of(node.right, names)
    if isinstance(node, ast.Call):
        return _called(node, names)
    return ast.literal_eval(node or ast.Name(""))


def _called(node: ast.Call, names: dict[str, Any]) -> dict[str, Any]:
    """Evaluate EasyDict or dict, however it was imported, of a dict or of keywords."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name.lower() not in ("easydict", "edict", "dict"):
        raise ValueError(name)
    values: dict[str, Any] = {}
    for argument in node.args:
        values |= value_of(argument, names)
    return values | {str(keyword.arg): value_of(keyword.value, names) for keyword in node.keywords}
