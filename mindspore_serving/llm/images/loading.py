"""Files of requests: from data URIs, or fetched from the hosts that the operator allows."""

import base64
import binascii
from collections import Counter
from collections.abc import Sequence

from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.fetching import FetchLimits, fetch
from mindspore_serving.llm.images.messages import MediaSource


def check_counts(sources: Sequence[MediaSource], config: EngineConfig) -> None:
    """Raise InvalidField if a request has more files of a kind than the option of that kind."""
    for kind, count in Counter(source.kind for source in sources).items():
        option = f"max_{kind}s"
        limit = getattr(config, option)
        if count > limit:
            accepted = f"at most {limit}" if limit else f"none: {option} is 0"
            field, _, inside = sources[0].field.partition("[")
            have = "have" if inside else "has"
            raise InvalidField(field, f"{have} {count} {kind}s, expected {accepted}")


def load_file(url: str, max_bytes: int, config: EngineConfig) -> bytes:
    """Return the file at `url`, decoded or fetched.

    Raises InvalidInputs, whose message follows the file's name.
    """
    if url[:5].lower() != "data:":
        return fetch(url, FetchLimits(config.image_hosts, max_bytes, config.preparation_timeout))
    head, comma, content = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidInputs('is no base64 data URI, expected "data:image/png;base64,..."')
    size = len(content) * 3 // 4 - content.count("=", len(content) - 2)
    if size > max_bytes:
        raise InvalidInputs(f"has {size:,} bytes, expected at most {max_bytes:,}")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputs(f"is no valid base64: {error}") from None
