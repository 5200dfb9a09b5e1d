"""The HTTP protocol of llm-serving, in the forms of its first release and of its later ones.

`routes` mounts it.
"""

from mindspore_serving.frontends.llm_serving.routes import routes

__all__ = ["routes"]
