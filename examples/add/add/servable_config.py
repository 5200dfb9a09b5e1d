"""Add two 2x2 matrices: the model alone, or behind a cast for any number type."""

import numpy as np

from mindspore_serving.server import register

# with_batch_dim=False: the 2x2 of the model is one instance, not a batch of two rows.
model = register.declare_model(
    model_file="tensor_add.mindir", model_format="MindIR", with_batch_dim=False
)


def to_float32(x1, x2):
    return x1.astype(np.float32), x2.astype(np.float32)


@register.register_method(output_names=["y"])
def add_common(x1, x2):
    """x1, x2: float32 of shape (2, 2).  y: their sum."""
    return register.add_stage(model, x1, x2, outputs_count=1)


# What `serve` and the web page show: the function in between hides the shape of the model's inputs.
@register.register_method(
    output_names=["y"], example={"x1": [[1, 2], [3, 4]], "x2": [[5, 6], [7, 8]]}
)
def add_cast(x1, x2):
    """x1, x2: any number type of shape (2, 2).  y: their sum as float32."""
    x1, x2 = register.add_stage(to_float32, x1, x2, outputs_count=2)
    return register.add_stage(model, x1, x2, outputs_count=1)
