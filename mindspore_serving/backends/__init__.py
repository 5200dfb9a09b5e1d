"""Model formats: load a model, describe its signature, run it.  Importing it imports no runtime."""

from mindspore_serving.backends.base import Backend, ModelSource
from mindspore_serving.backends.devices import (
    Availability,
    available,
    check_device_id,
    choose_device,
)
from mindspore_serving.backends.formats import open_backend, resolve

__all__ = [
    "Availability",
    "Backend",
    "ModelSource",
    "available",
    "check_device_id",
    "choose_device",
    "open_backend",
    "resolve",
]
