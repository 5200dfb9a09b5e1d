"""A servable that adds one to a vector: nothing but the server's own work to measure."""

from mindspore_serving.server import register


def plus_one(instances):
    """Takes the instances of a batch, each (x,), and gives x + 1 for each."""
    for (x,) in instances:
        yield x + 1


@register.register_method(output_names=["y"])
def add_one(x):
    return register.add_stage(plus_one, x, outputs_count=1, batch_size=64)
