"""Backends between which a model's declaration can choose."""

from mindspore_serving.errors import InvalidInputs

CHOICES = {
    "mindir": ("MindIR", ("mindspore", "openvino")),
    "onnx": ("ONNX", ("onnxruntime", "openvino")),
}
"""Format -> its name in errors, and its backends."""


def check_backend(backend: object, model_format: str) -> str:
    """Return `backend`, "" for None.  Raises InvalidInputs if it cannot run `model_format`."""
    if not backend and backend in (None, ""):
        return ""
    if backend in CHOICES.get(model_format, ("", ()))[1]:
        return str(backend)
    accepted = ", ".join(
        f"{' or '.join(names)} with model format {shown}" for shown, names in CHOICES.values()
    )
    raise InvalidInputs(
        f"Parameter 'backend' can only be {accepted}, but given {backend!r} with model format "
        f"{model_format}"
    )
