"""Old path of `server.distributed`, kept for old scripts; workers are in `worker`."""

from mindspore_serving.server import distributed

__all__ = ["distributed"]
