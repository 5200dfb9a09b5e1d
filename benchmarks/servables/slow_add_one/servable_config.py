"""A classic servable of known speed: a stage that takes 20 ms for each instance."""

import time

from mindspore_serving.server import register


def add_slowly(x):
    time.sleep(0.02)
    return x + 1


@register.register_method(output_names=["y"])
def add_one(x):
    return register.add_stage(add_slowly, x, outputs_count=1)
