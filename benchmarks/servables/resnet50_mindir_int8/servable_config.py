"""ResNet-50 quantised to int8; benchmarks/models.py writes 1/resnet50.xml."""

from mindspore_serving.server import register

model = register.declare_model(model_file="resnet50.xml", model_format="OpenVINO")


@register.register_method(output_names=["logits"])
def predict(image):
    """float32 (3, 224, 224) to float32 (1000,)."""
    return register.add_stage(model, image, outputs_count=1)
