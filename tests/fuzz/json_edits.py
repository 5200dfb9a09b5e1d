"""Edits of a JSON body along its structure: fields removed, doubled, of another type, moved.

A body is edited as Python's values, in which `Literal` stands for bytes that are written as they
are.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from tests.fuzz import odd_values

Field: TypeAlias = "tuple[str, Any]"  # a key and its value


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes of a body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """A value: the object or array that it is in, and its key there."""

    inside: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.inside[self.key]

    def put(self, value: Any) -> None:
        self.inside[self.key] = value


def dump(value: Any) -> bytes:
    """`value` as JSON."""
    if isinstance(value, Literal):
        return value.data
    if isinstance(value, dict):
        members = (json.dumps(str(key)).encode() + b":" + dump(v) for key, v in value.items())
        return b"{" + b",".join(members) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(dump, value)) + b"]"
    return json.dumps(value).encode()


def fields_of(value: Any) -> Iterator[Field]:
    """Every field of every object in `value`."""
    if isinstance(value, dict):
        yield from value.items()
    for inner in _inner(value):
        yield from fields_of(inner)


def edit(body: Any, known: Sequence[Field], random: Random) -> Any:
    """`body` after one to four edits; `known` are fields that the protocol has.  `body` itself may
    be changed."""
    root = [body]
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        places = list(_places(root))
        random.choice(_EDITS)(random.choice(places), known, random)
    return root[0]


def _places(value: Any) -> Iterator[Place]:
    if isinstance(value, list):
        for index in range(min(len(value), 20)):  # of a long list, some are enough
            yield Place(value, index)
    elif isinstance(value, dict):
        for key in list(value)[:50]:
            yield Place(value, key)
    for inner in _inner(value):
        yield from _places(inner)


def _inner(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())[:50]
    return value[:20] if isinstance(value, list) else ()


def _replace(place: Place, _: Sequence[Field], random: Random) -> None:
    place.put(odd_values.value(random))


def _write_badly(place: Place, _: Sequence[Field], random: Random) -> None:
    place.put(Literal(odd_values.literal(random)))


def _remove(place: Place, _: Sequence[Field], random: Random) -> None:
    if isinstance(place.inside, dict):
        del place.inside[place.key]
    else:
        place.put(None)


def _double(place: Place, _: Sequence[Field], random: Random) -> None:
    """A key twice in its object, or an entry again and again in its array."""
    if isinstance(place.inside, dict):
        other = random.choice((place.value, odd_values.value(random)))
        text = dump(place.value) + b"," + json.dumps(str(place.key)).encode() + b":" + dump(other)
        place.put(Literal(text))
    elif len(place.inside) > 1 or place.key:
        place.inside.extend([place.value] * random.choice((1, 5, 100, 1000)))


def _nest(place: Place, _: Sequence[Field], random: Random) -> None:
    """In arrays or objects, as many as a reader may not bear."""
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    levels = random.choice((1, 2, 50, 200, 1100, 20_000))
    place.put(Literal(opening * levels + dump(place.value) + closing * levels))


def _add(place: Place, known: Sequence[Field], random: Random) -> None:
    """A field of another request, with its value or another."""
    if not known:
        return
    name, found = random.choice(known)
    value = deepcopy(found)
    target = place.value if isinstance(place.value, dict) else place.inside
    if isinstance(target, dict):
        target[name] = value if random.random() < 0.6 else odd_values.value(random)
    else:
        place.put(value)


def _change_text(place: Place, _: Sequence[Field], random: Random) -> None:
    if not isinstance(place.value, str):
        place.put(str(place.value) if not isinstance(place.value, Literal) else "")
        return
    given, other = place.value, odd_values.text(random)
    at = random.randrange(len(given) + 1)
    made = (given[:at] + other + given[at:], given * 50, given.upper(), given[:at], other)
    place.put(random.choice(made))


def _change_number(place: Place, _: Sequence[Field], random: Random) -> None:
    given = place.value
    if isinstance(given, bool) or not isinstance(given, int | float):
        place.put(odd_values.number(random))
        return
    place.put(random.choice((-given, given + 1, given - 1, given * 1000, given / 7, float(given))))


def _rename(place: Place, known: Sequence[Field], random: Random) -> None:
    if isinstance(place.inside, dict):
        other = random.choice(known)[0] if known and random.random() < 0.5 else ""
        place.inside[other or odd_values.text(random)] = place.inside.pop(place.key)


_EDITS: tuple[Callable[[Place, Sequence[Field], Random], None], ...] = (
    *(_replace, _replace, _replace, _write_badly, _remove, _double, _nest),
    *(_add, _add, _add, _change_text, _change_text, _change_number, _change_number, _rename),
)
