import subprocess
import sys

import numpy as np
import pytest

from mindspore_serving.core.graph import Method
from mindspore_serving.wire import ms_instance, ms_json, native, worker_codec
from tests.waiting import PATIENCE

METHOD = Method("m", ("x",), ("y",), (), (0,))
X = np.array([1.0, 2.0], np.float32)


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        ("ms_proto", ms_instance.encode({"x": X})),
        ("ms_json", b'{"instances": {"x": [1.0, 2.0]}}'),
        ("ms_json_items", b'{"x": [1.0, 2.0]}'),
        ("native", native.encode_values([X])),
    ],
)
def test_every_codec_reads_and_writes(name, chunk):
    codec = worker_codec(name)
    (instance,) = codec.decode([memoryview(chunk)], METHOD, "s")
    np.testing.assert_array_equal(instance["x"], X, strict=True)
    instance["x"] += 1  # stages may
    assert codec.encode({"y": X})


def test_both_json_codecs_write_alike():
    assert worker_codec("ms_json").encode is worker_codec("ms_json_items").encode is ms_json.encode


def test_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        worker_codec("pickle")


def test_a_codec_is_imported_only_when_used():
    code = (
        "import sys; from mindspore_serving import wire; wire.worker_codec('native');"
        "assert not {'grpc', 'google.protobuf'} & set(sys.modules), 'too much imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
