"""Two models and Python functions in one method: the stages of different instances overlap."""

import numpy as np

from mindspore_serving.server import register

add_model = register.declare_model(
    model_file="tensor_add.mindir", model_format="MindIR", with_batch_dim=False
)
sub_model = register.declare_model(
    model_file="tensor_sub.mindir", model_format="MindIR", with_batch_dim=False
)


EXAMPLE = {"x1": [[1, 2], [3, 4]], "x2": [[5, 6], [7, 8]], "x3": [[1, 1], [1, 1]]}


def to_float32(x1, x2, x3):
    return x1.astype(np.float32), x2.astype(np.float32), x3.astype(np.float32)


def double(x):
    return x * 2


def describe(total, result):
    return f"sum {total.sum():g}, result {result.sum():g}"


@register.register_method(output_names=["y"], example=EXAMPLE)
def add_sub(x1, x2, x3):
    """x1, x2, x3: numbers of shape (2, 2).  y = x1 + x2 - x3, float32."""
    x1, x2, x3 = register.add_stage(to_float32, x1, x2, x3, outputs_count=3)
    total = register.add_stage(add_model, x1, x2, outputs_count=1)
    return register.add_stage(sub_model, total, x3, outputs_count=1)


@register.register_method(output_names=["y", "text"], example=EXAMPLE)
def double_add_sub(x1, x2, x3):
    """y = 2 * (x1 + x2) - x3, float32, and a text that says what was computed."""
    x1, x2, x3 = register.add_stage(to_float32, x1, x2, x3, outputs_count=3)
    total = register.add_stage(add_model, x1, x2, outputs_count=1)
    doubled = register.add_stage(double, total, outputs_count=1)
    y = register.add_stage(sub_model, doubled, x3, outputs_count=1)
    text = register.add_stage(describe, total, y, outputs_count=1)
    return y, text
