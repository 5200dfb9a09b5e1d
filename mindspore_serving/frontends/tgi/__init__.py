"""HTTP protocol of Text Generation Inference (TGI, version 3).

Its routes are methods and functions of `TgiService`; `root_health` answers GET / unless a browser
sends it.
"""

from mindspore_serving.frontends.tgi.answering import root_health
from mindspore_serving.frontends.tgi.checks import RequestLimits
from mindspore_serving.frontends.tgi.generating import TgiService
from mindspore_serving.frontends.tgi.metrics import Recorder
from mindspore_serving.frontends.tgi.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES", "TgiService", "Recorder", "RequestLimits", "root_health"]
