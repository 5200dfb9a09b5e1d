"""Servables written as a user writes them, and the message that has them loaded."""

import textwrap

import pytest

from mindspore_serving.ipc.messages import Setup
from mindspore_serving.servable import model, servable_method
from tests.declaring import METHOD

HEAD = """\
import numpy as np
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.server import register

def signature(num_inputs, num_outputs, shape=(-1,)):
    \"\"\"Attribute of a Python model that says what it takes and makes: int64 of any size.\"\"\"
    def set_signature(function):
        spec = lambda name: TensorSpec(name, np.dtype("int64"), shape)
        inputs = tuple(spec(f"x{i}") for i in range(num_inputs))
        outputs = tuple(spec(f"y{i}") for i in range(num_outputs))
        function.signature = Signature(inputs, outputs)
        return function
    return set_signature

"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the servable "tiny" with this servable_config.py; gives its Setup."""
    monkeypatch.setenv("SERVING_DEVICE_ID", "")  # so that it is put back

    def make(body, **changes):
        directory = tmp_path / "tiny"
        directory.mkdir(exist_ok=True)
        (directory / "servable_config.py").write_text(HEAD + METHOD + textwrap.dedent(body))
        values = {
            "servable_directory": str(tmp_path),
            "servable_name": "tiny",
            "version": 0,
            "device_type": "none",
            "device_id": None,
            "owns_models": True,
            "dec_key": None,
            "dec_mode": "AES-GCM",
            "enable_lite": False,
            "models": {},
        }
        return Setup(**{**values, **changes})

    yield make
    model.bind_runner(None)
    servable_method.bind_runner(None)
