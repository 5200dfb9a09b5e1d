"""Protocol of llama.cpp's server: completions, and code between a prefix and a suffix.

Each route decodes a body to a struct of `requests`, and writes the events of the answer as one
object or as events.
"""

from mindspore_serving.frontends.llamacpp.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]
