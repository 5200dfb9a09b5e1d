"""Text Generation Inference's HTTP protocol (TGI, version 3).

`TgiGenerating` is what its routes are bound to; `root_health` is its answer to GET / unless a
browser calls.
"""

from mindspore_serving.frontends.tgi.answering import root_health
from mindspore_serving.frontends.tgi.checks import RequestLimits
from mindspore_serving.frontends.tgi.generating import TgiGenerating
from mindspore_serving.frontends.tgi.metrics import Recorder
from mindspore_serving.frontends.tgi.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES", "TgiGenerating", "Recorder", "RequestLimits", "root_health"]
