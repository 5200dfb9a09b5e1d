"""Inputs and outputs of a method, as clients read them."""

from mindspore_serving.core.signature import ValueSpec, describe, merge, schema_of


def test_description_shows_unknown_dimensions_and_optional_inputs():
    specs = [ValueSpec("x", "float32", (3, None)), ValueSpec("y", is_optional=True)]
    assert describe(specs) == [
        {"name": "x", "dtype": "float32", "shape": [3, None]},
        {"name": "y", "dtype": None, "shape": None, "optional": True},
    ]


def test_schema_of_sampling_parameter_has_default_of_the_model():
    spec = ValueSpec("t", "float32", (), parameter="temperature", default=0.6)
    schema = schema_of(spec)
    assert (schema["type"], schema["minimum"], schema["default"]) == ("number", 0, 0.6)
    assert describe([spec])[0]["schema"] == schema
    assert "default" not in schema_of(ValueSpec("t", parameter="temperature"))


def test_merge_drops_dtypes_and_shapes_that_differ():
    first = ValueSpec("x", "float32", (2,), is_optional=True)
    assert merge([first, ValueSpec("y", "float32", (3,))]) == ValueSpec(
        "x", "float32", None, is_optional=True
    )
    assert merge([first, ValueSpec("y", "int32", (2,))]).dtype is None
