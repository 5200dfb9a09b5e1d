"""One server of small models, to which all mistakes are made."""

from collections.abc import Iterator

import pytest

from tests.e2e.harness import Calls, config, serving, write_servable
from tests.llm import chatty
from tests.llm.voices.tiny import write_piper
from tests.tasks import checkpoints

LANGUAGE = {"dtype": "f32", "kv_cache_memory": 8 << 20}
SOURCE = """
from mindspore_serving.core.value import Signature, TensorSpec

def scale(x):
    return x * 2
scale.signature = Signature(
    (TensorSpec("x", np.dtype("float32"), (-1, 4)),),
    (TensorSpec("y", np.dtype("float32"), (-1, 4)),),
)
model = register.declare_model(scale, model_format="Python")

@register.register_method(output_names=["y"])
def predict(x):
    return register.add_stage(model, x, outputs_count=1)

@method("z")
def add(x, y):
    return x + y

@method("text")
def upper(text):
    return text.upper()

@method("text")
def lower(text: str):
    return text.lower()

@method("quotient")
def divide(x, y):
    return x / y

@method("quotient")
def divide_exactly(x, y):
    return int(x) // int(y)

@method("count")
def size(image):
    return len(bytes(image))
"""


COUNTER = """
def add(total, x):
    return total + np.int64(x)

@register.register_method(output_names=["total"])
def count(x):
    total = register.declare_state("total", (), "int64")
    new = register.add_stage(add, total, x, outputs_count=1)
    total.update(new)
    return new
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    place = tmp_path_factory.mktemp("mistakes")
    write_servable(place, "toy", SOURCE)
    write_servable(place, "counter", COUNTER)
    chatty.build(place, context=128)
    checkpoints.build(place / "embedder", "bert", "Model")
    write_piper(place, "voice")
    models = (
        config(place, "toy"),
        config(place, "counter"),
        config(place, "chatty", llm_options=LANGUAGE),
        config(place, "embedder"),
        config(place, "voice.onnx"),
    )
    with serving(place, *models, limit=1) as served:
        yield served
