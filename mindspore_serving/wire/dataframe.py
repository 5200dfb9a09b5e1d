"""DataFrames in JSON, as pandas and MLflow write them, to the instances of a classic JSON body.

Columns are found by their names.  Values stay JSON text, which is checked where instances are
decoded; knows no HTTP.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from mindspore_serving.core.signature import ValueSpec
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.wire.json_literals import RawDecoder
from mindspore_serving.wire.json_shape import SMALL, Shape, check_shape, has_more_items
from mindspore_serving.wire.tensor import MAX_INSTANCES

T = TypeVar("T")
MAX_COLUMNS = 1 << 16
MAX_VALUES = 1 << 22  # of a DataFrame by columns, which is turned to rows
_SHOWN = 12  # max columns in an error
_BOOLS = {b"true": b"1", b"false": b"0"}
_NUMERALS = b"-0123456789"

_Row = list[msgspec.Raw]


class NoTable(InvalidInputs):
    """Error of a text that is no DataFrame."""


class _Split(msgspec.Struct):
    data: msgspec.Raw
    columns: list[str] | msgspec.UnsetType = msgspec.UNSET


_split = RawDecoder[_Split](_Split)
_list = RawDecoder[_Row](_Row)
_object = RawDecoder[dict[str, msgspec.Raw]](dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def from_split(text: msgspec.Raw, inputs: Sequence[ValueSpec]) -> list[bytes]:
    """Return the instances of {"columns": [NAME], "data": [[VALUE]]}; an index is ignored.

    Without columns, the values are in the order of the model.  Raises InvalidInputs, as the other
    functions do.
    """
    split = _parse(_split, text, '{"columns": [NAME, ...], "data": [[VALUE, ...], ...]}')
    rows = _items(_list, split.data, MAX_INSTANCES, "a list of rows")
    named = split.columns
    columns = _names(inputs) if named is msgspec.UNSET else named
    return _instances(columns, _lists(rows, len(columns)), inputs)


def from_records(text: msgspec.Raw, inputs: Sequence[ValueSpec]) -> list[bytes]:
    """Return the instances of [{NAME: VALUE}]; all objects have the same columns."""
    rows = _items(_list, text, MAX_INSTANCES, "a list of objects")
    if not rows:
        raise _no_rows()
    columns = [*_record(rows[0])]
    return _instances(columns, _records(rows, columns), inputs)


def from_columns(text: msgspec.Raw, inputs: Sequence[ValueSpec]) -> list[bytes]:
    """Return the instances of {NAME: [VALUE]}, or of {NAME: {INDEX: VALUE}} of one index."""
    check_shape(memoryview(text), Shape(MAX_VALUES, MAX_COLUMNS))
    table = _parse(_object, text, "{NAME: {INDEX: VALUE}}, or {NAME: [VALUE, ...]}")
    columns = {name: _column(name, part) for name, part in table.items()}
    index = next(iter(columns.values()), {}).keys()
    for name, values in columns.items():
        if values.keys() != index:
            raise InvalidInputs(
                f"column {name!r:.100} of the DataFrame has not the rows of {next(iter(columns))!r}"
                ", expected one value of each column for each row"
            )
    rows = ([values[row] for values in columns.values()] for row in index)
    return _instances([*columns], rows, inputs)


def _column(name: str, text: msgspec.Raw) -> dict[Any, msgspec.Raw]:
    """Return the values of a column by their index."""
    what = f"rows of column {name!r:.100}"
    if bytes(memoryview(text)[:1]) == b"[":
        values = _items(_list, text, MAX_INSTANCES, what)
        return dict(enumerate(values))
    by_index = _items(_object, text, MAX_INSTANCES, what)
    return dict[Any, msgspec.Raw](by_index)


def _lists(rows: _Row, count: int) -> Iterator[_Row]:
    for index, row in enumerate(rows):
        values = _items(_list, row, MAX_COLUMNS, f"row {index} of the DataFrame as a list")
        if len(values) != count:
            raise InvalidInputs(
                f"row {index} of the DataFrame has {len(values)} values, expected {count}, one for "
                "each column"
            )
        yield values


def _records(rows: _Row, columns: list[str]) -> Iterator[_Row]:
    for index, row in enumerate(rows):
        record = _record(row)
        if record.keys() != set(columns):
            differing = _shown(sorted(record.keys() ^ set(columns)))
            raise InvalidInputs(
                f"row {index} of the DataFrame has other columns than row 0, by {differing}; write "
                "null for a missing value"
            )
        yield [record[name] for name in columns]


def _record(text: msgspec.Raw) -> dict[str, msgspec.Raw]:
    return _items(_object, text, MAX_COLUMNS, "rows of the DataFrame as objects")


def _instances(
    columns: Sequence[str], rows: Iterable[Sequence[msgspec.Raw]], inputs: Sequence[ValueSpec]
) -> list[bytes]:
    """Return each row as a JSON object with the inputs of the method."""
    names = [spec.name for spec in inputs]
    required = [spec for spec in inputs if not spec.is_optional]
    by_name = set(columns) & set(names) or len(required) != 1
    if by_name:
        order = _order(columns, names, {spec.name for spec in inputs if spec.is_optional})
        kinds = {spec.name: spec.dtype for spec in inputs}
        heads = [(_encode(names[i]) + b":", at, kinds[names[i]]) for i, at in enumerate(order)]
        made = [
            b"{%b}" % b",".join(head + _typed(row[at], kind) for head, at, kind in heads if at >= 0)
            for row in rows
        ]
    else:
        made = _features(columns, rows, required[0])
    if not made:
        raise _no_rows()
    return made


def _features(
    columns: Sequence[str], rows: Iterable[Sequence[msgspec.Raw]], spec: ValueSpec
) -> list[bytes]:
    """Return instances of one input, which has a value for each column."""
    if spec.columns:
        order = _order(columns, spec.columns, set())
    else:  # a model that was trained without names
        shape = spec.shape or ()
        count = shape[0] if len(shape) == 1 else 1
        if count not in (None, len(columns)):
            raise InvalidInputs(
                f"the DataFrame has {len(columns)} columns, expected {count}, in the order of "
                "training: the model does not know their names"
            )
        order = [*range(len(columns))]
        if len(shape) != 1:
            name = _encode(spec.name)
            return [b"{%b:%b}" % (name, _typed(row[0], spec.dtype)) for row in rows]
    head = b"{%b:[" % _encode(spec.name)
    return [head + b",".join(_typed(row[at], spec.dtype) for at in order) + b"]}" for row in rows]


def _names(inputs: Sequence[ValueSpec]) -> list[str]:
    """Return a name for each value of a row without columns, its number if it has no name."""
    required = [spec for spec in inputs if not spec.is_optional]
    if len(required) != 1:
        return [spec.name for spec in inputs]
    (spec,) = required
    if spec.columns:
        return [*spec.columns]
    shape = spec.shape or ()
    is_row = len(shape) == 1 and shape[0] not in (None, 1)
    return [str(number) for number in range(shape[0] or 1)] if is_row else [spec.name]


def _order(present: Sequence[str], expected: Sequence[str], optional: set[str]) -> list[int]:
    """Return the index in `present` of each column in `expected`, -1 for an optional one.

    A model of LightGBM has underscores for the spaces of training.  Raises InvalidInputs if a
    column is missing, is not the model's, or is there twice.
    """
    known = set(expected)
    named = [name if name in known else name.replace(" ", "_") for name in present]
    indices = {name: index for index, name in enumerate(named)}
    missing = [name for name in expected if name not in indices and name not in optional]
    extra = [name for name in named if name not in known]
    if missing or extra or len(indices) != len(present):
        twice = [name for index, name in enumerate(named) if indices[name] != index]
        texts = [
            f"{text} {_shown(names)}"
            for text, names in (("misses", missing), ("has unknown", extra), ("has twice", twice))
            if names
        ]
        raise InvalidInputs(
            f"the DataFrame {' and '.join(texts)}, expected the columns {_shown(expected)}, in any "
            "order"
        )
    return [indices.get(name, -1) for name in expected]


def _typed(value: msgspec.Raw, dtype: str | None) -> bytes:
    """Return a value as the dtype needs it: a number as a category, a bool among numbers."""
    text = bytes(value)
    if dtype == "str" and text[:1] in _NUMERALS:
        return b'"%b"' % text
    return text if dtype in (None, "str", "bool") else _BOOLS.get(text, text)


def _items(decoder: RawDecoder[T], text: msgspec.Raw, limit: int, what: str) -> T:
    """Decode a list or an object of at most `limit` items, counted before they are decoded."""
    view = memoryview(text)
    if len(view) > SMALL and has_more_items(view, limit - 1, depth=0):
        raise TooLarge(f"a DataFrame has at most {limit} {what}")
    return _parse(decoder, text, what)


def _parse(decoder: RawDecoder[T], text: msgspec.Raw, expected: str) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoTable(f"the DataFrame is not as expected, {expected}: {error}") from None


def _no_rows() -> InvalidInputs:
    return InvalidInputs("the DataFrame has no rows, expected at least one")


def _shown(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(f"'{name[:60]}'" for name in names[:_SHOWN]) + more
