"""Speech in a stream of sound: each request has the next 512 samples of its sequence."""

import numpy as np

from mindspore_serving.server import register

model = register.declare_model(
    "silero_vad.onnx",
    "ONNX",
    batch_axis={"state": 1, "stateN": 1, "sr": -1},
    states={"state": "stateN"},
    context=register.Context(thread_num=1),  # more threads only wait for each other
)


def join(context: np.ndarray, chunk: np.ndarray) -> tuple:
    samples = np.concatenate([context, chunk])  # the model sees the end of the chunk before
    return samples, np.int64(16_000), samples[-64:]


@register.register_method(output_names=["speech"], example={"chunk": np.zeros(512, np.float32)})
def predict(chunk):
    context = register.declare_state("context", 64)
    samples, rate, end = register.add_stage(join, context, chunk, outputs_count=3)
    context.update(end)
    return register.add_stage(model, samples, rate, outputs_count=1)
