"""The HTTP protocol of llm-serving, as in its first release and in later ones."""

from mindspore_serving.frontends.llm_serving.answering import LlmServing
from mindspore_serving.frontends.llm_serving.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES", "LlmServing"]
