"""Limits of the running server."""

from mindspore_serving.servable import check
from mindspore_serving.server import startup


def set_max_enqueued_requests(max_enqueued_requests: int) -> None:
    """Set the limit of queued and running requests; further requests are refused.

    Args:
        max_enqueued_requests: int >= 1; 10000 unless set.

    Raises:
        RuntimeError: the argument is invalid.
    """
    check.check_int("max_enqueued_requests", max_enqueued_requests, 1, None)
    startup.set_capacity(max_enqueued_requests=max_enqueued_requests)


def set_max_loaded(number: int) -> None:
    """Set the limit of servables that have workers at a time.

    At the limit, the least recently used servable is unloaded for another one that is requested,
    whose requests wait until it is loaded.  This applies to servables that were started with
    `max_workers` over 0 and `min_workers` 0.

    Args:
        number: int >= 0; 0, the default, for no limit.

    Raises:
        RuntimeError: the argument is invalid.
    """
    check.check_int("max_loaded", number, 0, None)
    startup.set_capacity(max_loaded=number)


def set_shutdown_delay(seconds: float) -> None:
    """Set for how long the server still accepts connections after SIGTERM or SIGINT.

    It reports not ready meanwhile, so that a balancer can take it out first.  The delay counts for
    the timeout of the shutdown.

    Args:
        seconds: at least 0; 0 unless set.

    Raises:
        RuntimeError: the argument is invalid.
    """
    check.check_number("shutdown_delay", seconds, 0)
    startup.set_shutdown_delay(seconds)


def set_shutdown_timeout(seconds: float) -> None:
    """Set the timeout of the shutdown after SIGTERM or SIGINT.

    At most 6 s of it are for workers to exit, the rest is for requests to finish.

    Args:
        seconds: at least 1; 25 unless set.

    Raises:
        RuntimeError: the argument is invalid.
    """
    check.check_number("shutdown_timeout", seconds, 1)
    startup.set_shutdown_timeout(seconds)
