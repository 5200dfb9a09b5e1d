"""LeNet as MindIR without MindSpore; benchmarks/footprint.py writes 1/lenet.mindir."""

from mindspore_serving.server import register

model = register.declare_model("lenet.mindir", "MindIR", backend="openvino")


@register.register_method(output_names=["logits"])
def predict(image):
    """float32 (1, 32, 32) to float32 (10,)."""
    return register.add_stage(model, image, outputs_count=1)
