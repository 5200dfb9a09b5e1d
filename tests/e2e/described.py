"""A server with what /openapi.json describes: a typed classic servable, and a language model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.harness import Calls, config, serving, write_servable
from tests.llm import chatty

SOURCE = """
from mindspore_serving.core.value import Signature, TensorSpec

def double(x):
    return x * 2
double.signature = Signature(
    (TensorSpec("x", np.dtype("float32"), (-1, 2)),),
    (TensorSpec("y", np.dtype("float32"), (-1, 2)),),
)
model = register.declare_model(double, model_format="Python")

@register.register_method(output_names=["y"])
def predict(x):
    return register.add_stage(model, x, outputs_count=1)

@method("text")
def show(value):
    return type(value).__name__

@method("letter")
def letters(value):
    yield from ("a", "b")
"""
OPTIONS = {"dtype": "f32", "kv_cache_memory": 8 << 20}


@contextmanager
def described(place: Path, *, has_language: bool = True, **http: Any) -> Iterator[Calls]:
    """`http` are options of the RESTful server."""
    write_servable(place, "toy", SOURCE)
    models = [config(place, "toy")]
    if has_language:
        chatty.build(place, context=64)
        models.append(config(place, "chatty", llm_options=OPTIONS))
    with serving(place, *models, **http) as calls:
        yield calls


def document(calls: Calls, **headers: str) -> Any:
    status, body = calls.http_call("GET", "/openapi.json", headers=headers)
    assert status == 200, body
    return json.loads(body)
