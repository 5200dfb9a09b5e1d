"""The HTTP protocol of llm-serving, in the forms of its first release and of its later ones."""

from mindspore_serving.frontends.llm_serving.answering import LlmServing
from mindspore_serving.frontends.llm_serving.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES", "LlmServing"]
