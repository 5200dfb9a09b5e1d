"""A path kept for scripts of older versions: the argument checks."""

from mindspore_serving.servable import check as check_type

__all__ = ["check_type"]
