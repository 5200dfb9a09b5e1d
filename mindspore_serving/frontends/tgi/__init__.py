"""Text Generation Inference's HTTP protocol (TGI, version 3).

`routes` mounts it; `root_health` is its answer to GET / unless a browser calls.
"""

from mindspore_serving.frontends.tgi.checks import RequestLimits
from mindspore_serving.frontends.tgi.metrics import Recorder
from mindspore_serving.frontends.tgi.routes import root_health, routes

__all__ = ["RequestLimits", "Recorder", "root_health", "routes"]
