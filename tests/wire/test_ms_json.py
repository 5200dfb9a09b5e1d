import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import BoxedStr
from mindspore_serving.errors import Code, InvalidInputs, ServingError, StageFailed, TooLarge
from mindspore_serving.wire import ms_json

NO_INSTANCES = "Parser request failed, key 'instances' expects to exist once, but actually 0 times"
NO_KEY = "Parser request failed, instances no key mode is not supported"
METHOD = Method("m", ("x",), ("y",), (), (0,))


def decode_in_parts(body, method, label):
    return ms_json.decode_items(ms_json.split(body), method, label)


both = pytest.mark.parametrize("decode", [ms_json.decode, decode_in_parts])


@both
def test_a_single_object_is_a_single_instance(decode):
    (instance,) = decode(b' { "instances" : {"x": 1, "other": null} } ', METHOD, "s")
    assert list(instance) == ["x"]
    np.testing.assert_array_equal(instance["x"], np.array(1, np.int32), strict=True)


@both
def test_an_array_holds_instances_in_order(decode):
    body = b'{"a": [1], "instances": [ {"x": "a"}, {"x": ["b"]} ], "b": {}}'
    assert decode(body, METHOD, "s") == [{"x": "a"}, {"x": "b"}]


@both
def test_of_equal_keys_the_last_counts(decode):
    body = b'{"instances": 1, "instances": {"x": "a", "x": "b"}}'
    assert decode(body, METHOD, "s") == [{"x": "b"}]


@both
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "http message invalid"),
        (b"{", "Illegal JSON format."),
        (b'{"instances": [1,]}', "Illegal JSON format."),
        (b'{"instances": NaN}', NO_KEY),
        (b'{"instances": {"x": [Infinitys]}}', "Illegal JSON format."),
        (b'{"instances": {"x": 1}} x', "Illegal JSON format."),
        (b'{"instances": {"x": "\xff"}}', "Illegal JSON format."),
        (b'{"instances": {"x": 1e400}}', "Illegal JSON format."),
        (b'{"instances": {"x": ' + b"9" * 5000 + b"}}", "Illegal JSON format."),
        (b"\xef\xbb\xbf{}", "Illegal JSON format."),
        (b'{"instances": ' + b"[" * 100000, "Illegal JSON format. It is nested too deeply"),
        (b"[" * 50_000 + b"]" * 50_000, "Illegal JSON format. It is nested too deeply"),
        (b"{}", NO_INSTANCES),
        (b"[]", NO_INSTANCES),
        (b"1", NO_INSTANCES),
        (b'{"Instances": {"x": 1}}', NO_INSTANCES),
        (b'{"instances": 1}', NO_KEY),
        (b'{"instances": null}', NO_KEY),
        (b'{"instances": "x"}', NO_KEY),
        (b'{"instances": [1, {"x": 1}]}', NO_KEY),
        (b'{"instances": [[1]]}', NO_KEY),
        (b'{"instances": []}', "Parser request failed, instances value is array type, but no val"),
        (
            b'{"instances": [{"x": 1}, 1]}',
            "Parser request failed, json array, instance is not object type",
        ),
        (
            b'{"instances": [{"x": 1}, {}]}',
            "Parser request failed, json array, instance is object type, but no value",
        ),
        (b'{"instances": {"": 1}}', "Parser request failed, string key is empty"),
        (
            b'{"instances": {"x": null}}',
            "Parser request failed, json value is null, it is not supported; null is a missing "
            "value of floats (input x)",
        ),
        (
            b'{"instances": {"z": 1}}',
            "Cannot find input x in instance input: given are ['z'], the inputs of add are ['x'",
        ),
        (
            b'{"instances": {"x": [["a"]]}}',
            "Instances input x check failed, detail: Instance tensor check failed: bytes or string "
            "type input shape can only be (1,) or empty, but given shape is [1, 1]",
        ),
    ],
)
def test_a_wrong_body_is_refused(decode, body, text):
    with pytest.raises(InvalidInputs) as raised:
        decode(body, METHOD, "add")
    assert str(raised.value).startswith(text)


def test_an_empty_object_is_refused():
    with pytest.raises(InvalidInputs, match="json object, value is empty"):
        ms_json.decode(b'{"instances": {}}', METHOD, "s")
    with pytest.raises(InvalidInputs, match="instance is object type, but no value"):
        decode_in_parts(b'{"instances": {}}', METHOD, "s")


def test_more_instances_than_the_limit_are_refused():
    body = b'{"instances": [' + b"{}," * 131072 + b"{}]}"
    for decode in (ms_json.decode, decode_in_parts):
        with pytest.raises(TooLarge, match="131072"):
            decode(body, METHOD, "s")


def test_values_of_any_depth_are_refused_as_numbers():
    body = b'{"instances": {"x": ' + b"[" * 100 + b"1" + b"]" * 100 + b"}}"
    with pytest.raises(InvalidInputs, match="more than 32 dimensions"):
        ms_json.decode(body, METHOD, "s")


def test_split_copies_nothing():
    body = b'{"instances": [ {"x": 1} , {"x": 2} ]}'
    assert [bytes(chunk) for chunk in ms_json.split(body)] == [b'{"x": 1}', b'{"x": 2}']
    assert all(isinstance(chunk, memoryview) for chunk in ms_json.split(body))


def test_the_golden_reply(golden):
    outputs = {
        "s": "hi",
        "f": np.array([[0.5, np.nan], [-1, 2]], np.float32),
        "n": np.array(7, np.int64),
        "b": b"\1\2",
    }
    reply = ms_json.assemble([ms_json.encode(outputs), b""], [None, (3, "boom")])
    assert reply == golden("restful_reply.json")


def test_infinities_are_null_and_boxed_texts_are_lists():
    outputs = {"y": np.array([np.inf, -np.inf]), "s": BoxedStr('"\u00e9')}
    assert ms_json.encode(outputs) == '{"s":["\\"\u00e9"],"y":[null,null]}'.encode()


def test_a_text_that_is_no_utf8_is_an_error_of_the_stage():
    with pytest.raises(StageFailed, match="Failed to construct the response"):
        ms_json.encode({"s": "\ud800"})


def test_equal_failures_of_all_instances_are_told_once():
    assert ms_json.assemble([b"", b""], [(2, "no"), (2, "no")]) == b'{"error_msg":"no"}'
    assert ms_json.assemble([b""], [(2, "no")]) == b'{"error_msg":"no"}'


def test_different_failures_are_reported_per_instance():
    reply = json.loads(ms_json.assemble([b"", b"", b'{"y":1}'], [(2, "a"), (2, "b"), None]))
    assert reply == {"instances": [{"error_msg": "a"}, {"error_msg": "b"}, {"y": 1}]}


def test_the_error_of_a_bad_tensor_has_the_index_of_its_instance():
    errors = [None, (Code.INVALID_TENSOR, "wrong shape")]
    reply = json.loads(ms_json.assemble([b'{"y":1}', b""], errors))
    error = {"error_msg": "wrong shape (instance 1, counted from 0)"}
    assert reply == {"instances": [{"y": 1}, error]}
    assert ms_json.assemble([b"", b""], [errors[1]] * 2) == b'{"error_msg":"wrong shape"}'


@pytest.mark.parametrize("errors", [None, [], [None]])
def test_a_good_reply_has_no_errors(errors):
    assert ms_json.assemble([b'{"y":1}'], errors) == b'{"instances":[{"y":1}]}'


def test_an_error_text_may_hold_anything():
    assert json.loads(ms_json.assemble_error('"\n\ud800')) == {"error_msg": '"\n\\ud800'}
    assert ms_json.assemble_error("") == b'{"error_msg":"Predict failed"}'


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.dictionaries(st.sampled_from(["b64", "type", "shape", "x"]), st.text(max_size=4)),
    st.fixed_dictionaries(
        {"b64": st.sampled_from(["", "AQI=", "AQIDBA=="])},
        optional={
            "type": st.sampled_from(["int8", "bool", "str", "fp16", "bytes", "int"]),
            "shape": st.lists(st.integers(-1, 4), max_size=3),
        },
    ),
)
trees = st.recursive(leaves, lambda children: st.lists(children, max_size=3), max_leaves=6)
bodies = st.one_of(
    st.dictionaries(st.sampled_from(["x", "", "z"]), trees).map(lambda one: {"instances": one}),
    trees.map(lambda tree: {"instances": tree}),
    trees,
).map(lambda body: json.dumps(body).encode())


@given(st.one_of(st.binary(max_size=50), bodies), st.data())
def test_only_our_errors_come_out_of_any_bytes(body, data):
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(0, 2)) if body else 0):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for decode in (ms_json.decode, decode_in_parts):
        try:
            outcomes.append(repr(decode(bytes(changed), METHOD, "s")))
        except ServingError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


@given(
    st.recursive(
        st.floats(-(2.0**100), 2.0**100, width=32),
        lambda c: st.lists(c, min_size=2, max_size=2),
        max_leaves=4,
    )
)
def test_numbers_are_read_as_numpy_reads_them(tree):
    try:
        expected = np.array(tree, np.float32)
    except ValueError:  # ragged
        return
    body = json.dumps({"instances": {"x": tree}}).encode()
    (instance,) = ms_json.decode(body, METHOD, "s")
    np.testing.assert_array_equal(instance["x"], expected, strict=True)
    assert json.loads(ms_json.encode(instance)) == {"x": expected.tolist()}
