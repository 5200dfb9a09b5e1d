"""A path kept for scripts of older versions; workers are `mindspore_serving.worker`."""

from mindspore_serving.server import distributed

__all__ = ["distributed"]
