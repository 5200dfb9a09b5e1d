"""Text Generation Inference's HTTP protocol (TGI, version 3).

`routes` mounts it; `root_health` is its answer to GET /, where no browser asks.
"""

from mindspore_serving.frontends.tgi.checks import Limits
from mindspore_serving.frontends.tgi.metrics import Recorder
from mindspore_serving.frontends.tgi.routes import root_health, routes

__all__ = ["Limits", "Recorder", "root_health", "routes"]
