"""Reading of a file of API keys: a key in each line, or YAML.

A line has the form `KEY NAME max_requests=8 requests_per_minute=60 priority=-1`; all but the key is
optional.  Empty lines and lines that begin with `#` are skipped.  In place of a key may stand
`sha256:` and the digest of it.  YAML has the same in a list `keys`, see docs/tenants.md.

No error shows a key.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from mindspore_serving.errors import InvalidInputs, StartError, reason
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.tenants.issuers import ALGORITHMS, Issuer
from mindspore_serving.frontends.tenants.limits import Limits

MIN_LENGTH = 8  # characters of a key
MAX_SIZE = 16 << 20  # bytes of a file
_SUFFIXES = (".yaml", ".yml")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_UNKNOWN = re.compile(r"'[^']*'|(?<=field )`[^`]*`")  # names in errors: one may be a key
_LIMITS = Limits.__slots__
_MIN = {**dict.fromkeys(_LIMITS, 1), "priority": -(2**31)}
_Limit = Annotated[int, msgspec.Meta(ge=1, lt=2**53)] | None
_Weight = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class KeyRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key of a YAML file: `key` or its `sha256`, and its limits, see `ApiKey`."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    key: str = ""
    sha256: str = ""
    max_requests: _Limit = None
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None
    tokens_per_day: _Limit = None
    models: list[str] = []
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    operator: bool = False


class IssuerRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity provider of a YAML file, see `Issuer`."""

    issuer: Annotated[str, msgspec.Meta(min_length=1)]
    audience: Annotated[str, msgspec.Meta(min_length=1)]
    jwks_url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    algorithms: tuple[str, ...] = ("RS256",)
    name_claim: str = "sub"
    models_claim: str = ""
    limits_claim: str = ""
    max_requests: _Limit = None
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None
    tokens_per_day: _Limit = None
    models: list[str] = []


class KeyRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a YAML file; `weights` are factors of the tokens of models."""

    keys: list[KeyRow] = []
    issuers: list[IssuerRow] = []
    weights: dict[str, _Weight] = {}


class KeyFile(NamedTuple):
    """Content of a file of API keys."""

    keys: tuple[ApiKey, ...]
    issuers: tuple[Issuer, ...] = ()


def read_keys(path: str | os.PathLike[str]) -> tuple[ApiKey, ...]:
    """Read the keys in `path`, as `read_key_file` does."""
    return read_key_file(path).keys


def read_key_file(path: str | os.PathLike[str]) -> KeyFile:
    """Read the keys and issuers in `path`.

    Raises StartError if the file cannot be read, or every user can read it, and InvalidInputs with
    the number of a wrong line.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            text = file.read(MAX_SIZE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(
            f"Serving Error: the file of API keys {path} cannot be read: {reason(error)}"
        ) from None
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o007:
        raise StartError(
            f"Serving Error: every user can read the API keys in {path}: run chmod o= {path}"
        )
    if len(text) > MAX_SIZE:
        raise StartError(f"Serving Error: the file of API keys {path} is over {MAX_SIZE} bytes")
    issuers: tuple[Issuer, ...] = ()
    if str(path).endswith(_SUFFIXES):
        rows = _rows_of_yaml(text, str(path))
        keys = tuple(_distinct(_keys_of_rows(rows, str(path))))
        issuers = tuple(_issuers_of(rows, str(path)))
    else:
        keys = tuple(_distinct(_keys_of_lines(text, str(path))))
    if not keys and not issuers:
        raise InvalidInputs(f"there is no API key in {path}, expected one in each line")
    return KeyFile(keys, issuers)


def _distinct(keys: Iterator[tuple[ApiKey, str]]) -> Iterator[ApiKey]:
    """Iterate over keys, each with its position.  Raises InvalidInputs for a repeated one."""
    seen: set[bytes] = set()
    for key, where in keys:
        if key.sha256 in seen:
            raise InvalidInputs(f"{where}: the API key is repeated")
        seen.add(key.sha256)
        yield key


def _keys_of_lines(text: str, path: str) -> Iterator[tuple[ApiKey, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        secret, digest = _secret_of(words.pop(0), where)
        name = words.pop(0) if words and "=" not in words[0] else f"line {number}"
        options: dict[str, Any] = dict(_limit_of(word, where) for word in words)
        priority = options.pop("priority", 0)
        yield ApiKey(secret, name, Limits(**options), priority, digest=digest), where


def _secret_of(word: str, where: str) -> tuple[str, bytes]:
    """Return a key, or the digest of one.  Raises InvalidInputs."""
    if digest := _DIGEST.fullmatch(word):
        return "", bytes.fromhex(digest[1])
    if word.startswith("sha256:"):
        raise InvalidInputs(f"{where}: the digest of the API key should have 64 digits of 0-9a-f")
    if not is_key(word):
        raise InvalidInputs(f"{where}: the API key should have {EXPECTED}")
    return word, b""


def _limit_of(word: str, where: str) -> tuple[str, int]:
    name, _, value = word.partition("=")
    try:
        number = int(value)
    except ValueError:
        number = None
    largest = 2**31 if name == "priority" else 2**53
    if name not in _MIN or number is None or not _MIN[name] <= number < largest:
        accepted = ", ".join(f"{limit}=N" for limit in _MIN)
        shown = repr(word) if name in _MIN else "a word"  # not shown: it may be a key
        raise InvalidInputs(f"{where}: {shown} is not one of {accepted}")
    return name, number


def _rows_of_yaml(text: str, path: str) -> KeyRows:
    from mindspore_serving.core import yaml_text  # not every environment has PyYAML

    try:
        return msgspec.convert(yaml_text.load(text, "this is no YAML"), KeyRows)
    except (InvalidInputs, msgspec.ValidationError) as error:
        raise InvalidInputs(f"{path}: {_UNKNOWN.sub('a name', str(error))}") from None


def _issuers_of(rows: KeyRows, path: str) -> Iterator[Issuer]:
    for index, row in enumerate(rows.issuers):
        wrong = sorted(set(row.algorithms) - ALGORITHMS)
        if wrong or not row.algorithms:
            raise InvalidInputs(
                f"{path}, issuers[{index}]: algorithms has {wrong}, expected some of "
                f"{', '.join(sorted(ALGORITHMS))}"
            )
        yield Issuer(
            row.issuer,
            row.audience,
            row.jwks_url,
            row.algorithms,
            row.name_claim,
            row.models_claim,
            row.limits_claim,
            Limits(*(getattr(row, limit) for limit in _LIMITS)),
            tuple(row.models),
            tuple(rows.weights.items()),
        )


def _keys_of_rows(rows: KeyRows, path: str) -> Iterator[tuple[ApiKey, str]]:
    weights = tuple(rows.weights.items())
    for index, row in enumerate(rows.keys):
        where = f"{path}, keys[{index}]"
        if bool(row.key) is bool(row.sha256):
            raise InvalidInputs(f"{where}: expected either key or sha256")
        secret, digest = _secret_of(row.key or f"sha256:{row.sha256.lower()}", where)
        yield (
            ApiKey(
                secret,
                row.name,
                Limits(*(getattr(row, limit) for limit in _LIMITS)),
                row.priority,
                digest=digest,
                models=tuple(row.models),
                weights=weights,
                is_operator=row.operator,
            ),
            where,
        )


EXPECTED = f"at least {MIN_LENGTH} printable ASCII characters without spaces"


def is_key(text: str) -> bool:
    """Return whether `text` is valid as a key, see EXPECTED."""
    has_space = not text.isprintable() or " " in text
    return len(text) >= MIN_LENGTH and text.isascii() and not has_space
