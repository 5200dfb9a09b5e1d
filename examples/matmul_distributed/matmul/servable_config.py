"""One model over eight ranks, called without a batch dimension."""

from mindspore_serving.server import distributed, register

model = distributed.declare_servable(rank_size=8, stage_size=1, with_batch_dim=False)


@register.register_method(output_names=["y"])
def predict(x):
    """x: float32 of shape (128, 96).  y: -(x @ weight), of shape (128, 16)."""
    return register.add_stage(model, x, outputs_count=1)
