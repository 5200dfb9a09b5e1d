"""Whole tensors of protocol v2, to a model whose first dimensions count no instances."""

import pytest

from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.wire.v2.datatypes import BY_NAME
from mindspore_serving.wire.v2.request import make_request
from mindspore_serving.wire.v2.tensors import InputTensor

INPUTS = (
    ValueSpec("x", "float32", (None, None)),
    ValueSpec("state", "float32", (2, None, 4)),
    ValueSpec("rate", "float32"),
)
WHOLE = InstanceSignature(INPUTS, is_batched=False)


def body(signature, *shapes, **parameters):
    inputs = []
    for spec, shape in zip(INPUTS, shapes, strict=True):
        size = 4
        for dim in shape:
            size *= dim
        inputs.append(InputTensor(spec.name, BY_NAME["FP32"], shape, "raw", bytes(size)))
    return make_request("", parameters, inputs, (), is_binary=True, signature=signature).body


def test_tensors_of_the_model_s_ranks_are_a_single_instance():
    assert not body(WHOLE, (1, 6), (2, 1, 4), ()).is_batched


def test_a_further_first_dimension_of_all_tensors_counts_instances():
    assert body(WHOLE, (3, 1, 6), (3, 2, 1, 4), (3,)).num_instances == 3


@pytest.mark.parametrize(("is_batched", "count"), [(True, 2), (False, 1)])
def test_the_parameter_decides_before_the_ranks(is_batched, count):
    assert body(WHOLE, (2, 6), (2, 1, 4), (2,), batched=is_batched).num_instances == count


def test_a_model_of_unknown_ranks_gets_whole_tensors():
    unknown = InstanceSignature((ValueSpec("x"),), is_batched=False)
    assert not body(unknown, (2, 6), (2, 1, 4), ()).is_batched
