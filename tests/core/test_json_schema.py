"""Schemas whose objects are closed."""

import pytest

from mindspore_serving.core.json_schema import (
    MAX_DEPTH,
    MAX_PARTS,
    MAX_PROPERTIES,
    closed,
    find_excess,
    without_annotations,
)

NUMBER = {"type": "number"}
ONE = {"type": "object", "properties": {"a": NUMBER}}
SHUT = {**ONE, "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (ONE, SHUT),
        ({"properties": {"a": ONE}}, {"properties": {"a": SHUT}, "additionalProperties": False}),
        ({"items": ONE}, {"items": SHUT}),
        ({"$defs": {"x": ONE}, "$ref": "#/$defs/x"}, {"$defs": {"x": SHUT}, "$ref": "#/$defs/x"}),
        ({"anyOf": [ONE, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"prefixItems": [ONE]}, {"prefixItems": [SHUT]}),
        ({"properties": {"properties": NUMBER}}, None),
    ],
    ids=range(7),
)
def test_objects_have_no_properties_but_the_stated(given, found):
    assert closed(given) == (found or {**given, "additionalProperties": False})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**ONE, "additionalProperties": True},
        {**ONE, "additionalProperties": NUMBER},
        {**ONE, "patternProperties": {"b": NUMBER}},
        {**ONE, "anyOf": [{"properties": {"b": NUMBER}}]},
        {"allOf": [ONE, {"properties": {"b": NUMBER}}]},
        {"properties": {"x": {"allOf": [ONE, ONE]}}},
        {"enum": [1]},
    ],
    ids=range(8),
)
def test_a_schema_that_allows_more_properties_is_unchanged(schema):
    assert closed(schema) == schema


def test_the_schema_that_is_given_is_not_changed():
    schema = {"properties": {"a": {"properties": {}}}}
    closed(schema)
    assert schema == {"properties": {"a": {"properties": {}}}}


def nested(depth):
    schema = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def listed(count):
    return {"properties": {f"p{index}": {} for index in range(count)}}


@pytest.mark.parametrize(
    ("schema", "excess"),
    [
        (nested(MAX_DEPTH), None),
        (nested(MAX_DEPTH + 1), f"is nested more than {MAX_DEPTH} deep"),
        (nested(100_000), f"is nested more than {MAX_DEPTH} deep"),
        (listed(MAX_PROPERTIES), None),
        ({"items": listed(1001)}, "has 1001 properties in one object, expected at most 1000"),
        ({"oneOf": [{}] * 1001}, "has 1001 oneOf in one object, expected at most 1000"),
        ({"$defs": {"properties": 3}}, None),
        ({"prefixItems": [{}] * MAX_PARTS}, f"has more than {MAX_PARTS} objects and lists"),
        ({"enum": ["x"] * MAX_PARTS}, None),
    ],
    ids=range(9),
)
def test_a_schema_may_have_so_many_parts(schema, excess):
    assert find_excess(schema) == excess


def test_annotations_are_left_out_and_names_stay():
    schema = {
        "title": "T",
        "properties": {"title": {"type": "string", "description": "d"}, "description": True},
        "$defs": {"default": {"anyOf": [{"title": "x", "const": {"title": 1}}], "default": {}}},
        "enum": [{"description": 1}],
        "required": ["title"],
    }
    assert without_annotations(schema) == {
        "properties": {"title": {"type": "string"}, "description": True},
        "$defs": {"default": {"anyOf": [{"const": {"title": 1}}]}},
        "enum": [{"description": 1}],
        "required": ["title"],
    }
