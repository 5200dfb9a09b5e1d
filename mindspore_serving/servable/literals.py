"""What Python source says literally.  It is read, never run: of its assignments those count whose
values are spelled out.
"""

import ast
from typing import Any

from mindspore_serving.errors import InvalidInputs


def read_assignments(text: str) -> dict[str, Any]:
    """The literal values of a module's names.  Raises InvalidInputs if it is no Python."""
    try:
        return names_of(ast.parse(text))
    except (SyntaxError, ValueError) as error:
        raise InvalidInputs(f"this is no Python: {error}") from None


def names_of(tree: ast.Module) -> dict[str, Any]:
    """The literal values of a module's names."""
    names: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
            try:
                names[target.id] = value_of(node.value, names)
            except (ValueError, KeyError, IndexError, TypeError):
                names.pop(target.id, None)  # computed: nobody knows here what it is
    return names


def value_of(node: ast.expr | None, names: dict[str, Any]) -> Any:
    """Raises ValueError, KeyError, IndexError or TypeError for what is not spelled out."""
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [value_of(one, names) for one in node.elts]
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
    """EasyDict or dict, however it was imported, of a dict or of keywords."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name.lower() not in ("easydict", "edict", "dict"):
        raise ValueError(name)
    found: dict[str, Any] = {}
    for given in node.args:
        found |= value_of(given, names)
    return found | {str(one.arg): value_of(one.value, names) for one in node.keywords}
