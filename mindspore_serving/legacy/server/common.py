"""Old path of the argument checks, kept for old scripts."""

from mindspore_serving.servable import check as check_type

__all__ = ["check_type"]
