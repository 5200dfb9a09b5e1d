"""One matrix product, cut over four ranks."""

import numpy as np

from mindspore_serving.server import distributed, register

model = distributed.declare_servable(rank_size=4, stage_size=1)


@register.register_method(output_names=["y"], example={"x": np.ones(1024, np.float32)})
def predict(x):
    """x: float32 of shape (1024,).  y: x @ weight, of shape (256,)."""
    return register.add_stage(model, x, outputs_count=1)
