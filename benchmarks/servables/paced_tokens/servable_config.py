"""A stream of known speed: a prompt takes `prompt_ms`, and each of `tokens` takes `token_ms`."""

import time

from mindspore_serving.server import register


def pace(prompt_ms, tokens, token_ms):
    time.sleep(float(prompt_ms) / 1000)
    for number in range(int(tokens)):
        time.sleep(float(token_ms) / 1000)
        yield number


@register.register_method(output_names=["token"])
def generate(prompt_ms, tokens, token_ms):
    return register.add_stage(pace, prompt_ms, tokens, token_ms, outputs_count=1)
