"""Schemas whose objects are closed."""

import pytest

from mindspore_serving.core.json_schema import closed

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
