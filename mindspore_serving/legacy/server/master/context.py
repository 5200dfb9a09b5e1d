"""`server.master.context` of version 2.0: see `server.context`."""

from mindspore_serving.server.context import (
    set_max_enqueued_requests,
    set_max_loaded,
    set_shutdown_delay,
    set_shutdown_timeout,
)

__all__ = [
    "set_max_enqueued_requests",
    "set_max_loaded",
    "set_shutdown_delay",
    "set_shutdown_timeout",
]
