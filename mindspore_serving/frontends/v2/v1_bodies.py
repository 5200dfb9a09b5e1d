"""Bodies of KServe's protocol v1 and of MLflow: instances and DataFrames, as classic JSON.

Values stay JSON text.  Knows no sockets.
"""

from collections.abc import Sequence

import msgspec

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.signature import ValueSpec
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.wire import dataframe
from mindspore_serving.wire.json_literals import RawDecoder
from mindspore_serving.wire.json_shape import SMALL, has_more_items
from mindspore_serving.wire.tensor import MAX_INSTANCES

_FORMS = (
    'expected {"dataframe_split": {"columns": [NAME], "data": [[VALUE]]}}, {"dataframe_records": '
    '[{NAME: VALUE}]}, {"instances": [...]}, {"inputs": ...}, or what DataFrame.to_json writes'
)


class _Body(msgspec.Struct):
    instances: list[msgspec.Raw] | None = None
    inputs: msgspec.Raw = msgspec.Raw()
    dataframe_split: msgspec.Raw = msgspec.Raw()
    dataframe_records: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()
    columns: msgspec.Raw = msgspec.Raw()
    data: msgspec.Raw = msgspec.Raw()


_body = RawDecoder[_Body](_Body)
_name = msgspec.json.Encoder().encode


def to_instances(body: Buffer, inputs: Sequence[ValueSpec]) -> list[bytes]:
    """Return each instance of a body of protocol v1 as an object with inputs.

    Raises InvalidInputs.
    """
    decoded = _decode(body)
    if table := _dataframe(decoded, inputs):
        return table
    if decoded.inputs:
        raise InvalidInputs("'inputs' is not available, send 'instances'")
    if not decoded.instances:
        raise InvalidInputs("'instances' is missing, or an empty list")
    return _named(decoded.instances, inputs)


def from_mlflow(body: Buffer, inputs: Sequence[ValueSpec]) -> list[bytes]:
    """Return each instance of a body of MLflow, or of one that pandas' DataFrame.to_json writes.

    Raises InvalidInputs.
    """
    whole = msgspec.Raw(bytes(body).strip())
    if _begins(whole, b"["):
        return dataframe.from_records(whole, inputs)
    if not _begins(whole, b"{"):
        raise InvalidInputs(f"the body is no JSON object, {_FORMS}")
    decoded = _decode(body)
    if decoded.params and bytes(decoded.params) not in (b"null", b"{}"):
        raise InvalidInputs("'params' are not available: leave them out")
    if table := _dataframe(decoded, inputs):
        return table
    if decoded.instances:
        return _rows(decoded.instances, inputs)
    if _begins(decoded.inputs, b"["):
        return _rows(_decode(b'{"instances":%b}' % bytes(decoded.inputs)).instances or [], inputs)
    if decoded.inputs:
        return dataframe.from_columns(decoded.inputs, inputs)
    if decoded.columns and _begins(decoded.data, b"["):
        return dataframe.from_split(whole, inputs)
    try:
        return dataframe.from_columns(whole, inputs)
    except dataframe.NoTable:
        raise InvalidInputs(f"the body has no known form, {_FORMS}") from None


def _dataframe(body: _Body, inputs: Sequence[ValueSpec]) -> list[bytes]:
    if body.dataframe_split:
        return dataframe.from_split(body.dataframe_split, inputs)
    if body.dataframe_records:
        return dataframe.from_records(body.dataframe_records, inputs)
    return []


def _decode(body: Buffer) -> _Body:
    if len(body) > SMALL and has_more_items(body, MAX_INSTANCES - 1, depth=1):
        raise TooLarge(f"A request has at most {MAX_INSTANCES} instances")
    try:
        return _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"failed to parse the request JSON: {error}") from None


def _rows(items: list[msgspec.Raw], inputs: Sequence[ValueSpec]) -> list[bytes]:
    """Return the instances of a list, whose objects are rows with columns."""
    if not items or not _begins(items[0], b"{"):
        return _named(items, inputs)
    return dataframe.from_records(msgspec.Raw(b"[%b]" % b",".join(map(bytes, items))), inputs)


def _named(items: list[msgspec.Raw], inputs: Sequence[ValueSpec]) -> list[bytes]:
    needed = [spec.name for spec in inputs if not spec.is_optional]
    return [_object(bytes(item), needed) for item in items]


def _object(item: bytes, needed: Sequence[str]) -> bytes:
    """Return an instance as an object; a plain value is the only input."""
    if item.startswith(b"{") and not (len(needed) == 1 and item.startswith(b'{"b64"')):
        return item
    if len(needed) != 1:
        raise InvalidInputs(
            f"an instance is not an object with the {len(needed)} inputs: {', '.join(needed)}"
        )
    return b"{%b:%b}" % (_name(needed[0]), item)


def _begins(text: msgspec.Raw, mark: bytes) -> bool:
    return bytes(memoryview(text)[:1]) == mark
