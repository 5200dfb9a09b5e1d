"""ResNet-50 computed in bfloat16; benchmarks/models.py writes 1/resnet50.mindir."""

from mindspore_serving.server import register

model = register.declare_model(
    model_file="resnet50.mindir", model_format="MindIR", backend="openvino", config_file="bf16.json"
)


@register.register_method(output_names=["logits"])
def predict(image):
    """float32 (3, 224, 224) to float32 (1000,)."""
    return register.add_stage(model, image, outputs_count=1)
