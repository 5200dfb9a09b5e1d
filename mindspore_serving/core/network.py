"""Networks of the operator's Python files, and the text form of their inputs.  Imports no file."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mindspore_serving.errors import InvalidInputs, did_you_mean

if TYPE_CHECKING:  # the command line shows its help without numpy
    import numpy as np

    from mindspore_serving.core.value import TensorSpec

GRAPH, PYNATIVE = MODES = ("graph", "pynative")
EXPECTED = "expected a type and a shape, as float32[-1,1,28,28], where -1 is any size"
_SPEC = re.compile(r"\s*(\w+)\s*\[([-\d,\s]*)\]\s*")
_MAX_DIMS = 32  # as of numpy 1
_MAX_SIZE = 1 << 31  # elements of the dimensions that are set


@dataclass(frozen=True, slots=True)
class NetworkCode:
    """Network in a Python file: a class, or a function that returns an object, and its options.

    `weights` is the path of its checkpoint, "" for the values of its constructor, which gets
    `arguments`. `inputs` are texts for `parse_spec` by name; `mode` is one of `MODES`, "" for the
    default.
    """

    name: str
    weights: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""


def parse_spec(name: str, text: str) -> "TensorSpec":
    """Return the spec of input `name`; `text` is as float32[-1,1,28,28], or float64[] of a scalar.

    Raises InvalidInputs.
    """
    from mindspore_serving.core import dtype as dtypes
    from mindspore_serving.core.value import TensorSpec

    match = _SPEC.fullmatch(text)
    known = [row.name for row in dtypes.TABLE if row.numpy is not None]
    try:
        shape = tuple(int(dim) for dim in match[2].split(",")) if match and match[2].strip() else ()
    except ValueError:
        match = None
    if match is None:
        raise InvalidInputs(f"input '{name}' is described by {text!r}, {EXPECTED}")
    if match[1] not in known:
        near = did_you_mean(match[1], known) or f": expected one of {', '.join(known)}"
        raise InvalidInputs(f"input '{name}' has the type {match[1]!r}, which does not exist{near}")
    if any(dim < -1 for dim in shape) or len(shape) > _MAX_DIMS:
        raise InvalidInputs(f"input '{name}' has the shape {list(shape)}, {EXPECTED}")
    if math.prod(max(dim, 1) for dim in shape) > _MAX_SIZE:
        raise InvalidInputs(f"input '{name}' has the shape {list(shape)}, over 2^31 elements")
    return TensorSpec(name, dtypes.BY_NAME[match[1]].numpy, shape)


def spec_text(array: "np.ndarray[Any, Any]") -> str:
    """Return the text for inputs like `array`, an example of a batch: its first axis is free."""
    dims = [-1, *array.shape[1:]] if array.ndim else []
    return f"{array.dtype.name}[{','.join(map(str, dims))}]"


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse NAME=VALUE pairs that are separated by commas, or a JSON object.

    Numbers, true, false, null and JSON lists are values of these types; others are texts. Raises
    InvalidInputs.
    """
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise InvalidInputs(f"{text[:80]!r} is no JSON object: {error}") from None
    return {name: _value(value) for name, value in _pairs(text)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_inputs(text: str) -> dict[str, str]:
    """Parse inputs, as x=float32[-1,28,28],mask=bool[-1]; x=@FILE.npy is an example.

    Raises InvalidInputs.
    """
    return {name: _example(value[1:]) if value[0] == "@" else value for name, value in _pairs(text)}


def _example(path: str) -> str:
    """Return the spec of the array in a .npy file, of which only the header is read."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidInputs(f"the example '{path}' cannot be read: {error}") from None
    if not isinstance(array, np.ndarray):
        raise InvalidInputs(f"the example '{path}' has several arrays, expected a .npy file of one")
    return spec_text(array)


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split NAME=VALUE pairs at the commas that are in no brackets."""
    pairs = [part.partition("=") for part in re.split(r",(?![^\[]*\])", text)]
    if not all(name.strip() and value for name, _, value in pairs):
        raise InvalidInputs(f"{text!r}: expected NAME=VALUE,NAME=VALUE")
    names = [name.strip() for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise InvalidInputs(f"{text!r} has a name twice")
    return [(name.strip(), value) for name, _, value in pairs]
