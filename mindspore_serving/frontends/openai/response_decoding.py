"""Decoding of the parts of a response's request that are kept as raw JSON."""

from typing import TypeVar

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.decoding import decode

Part = TypeVar("Part", bound=msgspec.Struct)


def read(path: str, raw: bytes, kind: type[Part]) -> Part:
    """Decode `raw` as a `kind`.

    Raises InvalidField with the path of the field in the request.
    """
    try:
        return decode(raw, kind)
    except InvalidField as error:
        if not error.field:
            raise InvalidField(path, text=str(error).replace("the body", path, 1)) from None
        raise error.renamed(f"{path}.{error.field}") from None
