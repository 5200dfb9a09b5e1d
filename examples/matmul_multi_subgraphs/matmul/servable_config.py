"""One model of two graphs: a Python stage chooses the graph by the shape of its input."""

import numpy as np

from mindspore_serving.server import register

WHOLE, ROW = 0, 1  # the order of model_file
EXAMPLE = {"x": np.ones((64, 96), np.float32)}
model = register.declare_model(
    model_file=["matmul_whole.mindir", "matmul_row.mindir"],
    model_format="MindIR",
    with_batch_dim=False,
)


def project_any(x):
    return model.call(x, subgraph=WHOLE if x.shape == (64, 96) else ROW)


def project_then_step(x):
    """The whole input once, then its last row again: the two answers agree."""
    whole = model.call(x, subgraph=WHOLE)
    last = model.call(x[-1:], subgraph=ROW)
    return last, float(np.abs(whole[-1:] - last).max())


@register.register_method(output_names="y", example=EXAMPLE)
def project(x):
    """x: float32 of shape (64, 96) or (1, 96).  y = x @ weight."""
    return register.add_stage(project_any, x, outputs_count=1)


@register.register_method(output_names=["last", "difference"], example=EXAMPLE)
def step(x):
    """x: float32 of shape (64, 96).  last: the answer for its last row; difference: see above."""
    last, difference = register.add_stage(project_then_step, x, outputs_count=2)
    return last, difference
