"""Whether values fit JSON schemas, judged by the library jsonschema."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.llm.chat.schema_fit import fits

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMAS = {
    "anything": {},
    "true": True,
    "false": False,
    "an object": CITY,
    "a closed one": {**CITY, "additionalProperties": False},
    "one of numbers": {"type": "object", "additionalProperties": {"type": "number"}},
    "several types": {"type": ["integer", "null"]},
    "numbers in bounds": {"minimum": 1, "exclusiveMaximum": 3},
    "numbers out of others": {"maximum": 5, "exclusiveMinimum": 0.5, "type": "number"},
    "sizes": {"minLength": 2, "maxLength": 3, "minItems": 1, "maxItems": 2, "minProperties": 1},
    "few members": {"maxProperties": 1},
    "an enumeration": {"enum": [1, "a", None, [1], {"a": 1}]},
    "a constant": {"const": True},
    "one": {"const": 1},
    "any of": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
    "one of": {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    "all of": {"allOf": [{"type": "integer"}, {"minimum": 2}]},
    "not": {"not": {"type": "string"}},
    "prefix items": {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    "a reference": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}},
    "itself": {"properties": {"next": {"$ref": "#"}}, "required": ["city"]},
}
VALUES = [
    *(None, True, False, 0, 1, 1.0, 1.5, 2, 3, 5, 6, -1, "", "a", "ab", "abcd"),
    *([], [1], ["a"], ["a", 1], ["a", "b"], [1, 2, 3], {}, {"a": 1}, {"a": 1, "b": 2}),
    *({"city": "x"}, {"city": 1}, {"city": "x", "y": 1}, {"city": 1, "next": {"city": 2}}),
    {"city": 1, "next": {"next": 1}},
]


def is_valid(value: object, schema: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_judged_as_the_library_does(name):
    schema = SCHEMAS[name]
    found = {repr(value): fits(value, schema) for value in VALUES}
    assert found == {repr(value): is_valid(value, schema) for value in VALUES}
    assert len(set(found.values())) == 2 or name in ("anything", "true", "false")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text("ab", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from(sorted(SCHEMAS)))
def test_drawn_values_are_judged_as_the_library_does(value, name):
    assert fits(value, SCHEMAS[name]) == is_valid(value, SCHEMAS[name])


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [{"items": {"$ref": "#"}}] * 60},
    ],
    ids=["a circle", "many circles", "many ways"],
)
def test_schemas_that_take_too_long_do_not_fit(schema):
    value: object = 1
    for _ in range(40):
        value = [value]
    assert not fits(value, schema)


@pytest.mark.parametrize("broken", [{"type": 5}, {"required": 3}, {"enum": 1}, {"minimum": "a"}, 7])
def test_keywords_that_are_malformed_say_nothing(broken):
    assert fits({"a": 1}, broken)
