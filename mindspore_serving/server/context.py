"""Limits of the running server."""

from mindspore_serving.servable import check
from mindspore_serving.server import startup


def set_max_enqueued_requests(max_enqueued_requests: int) -> None:
    """The most requests in flight, 10000 unless set; one more is refused with a clear error.

    Raises RuntimeError if it is not an int of at least 1.
    """
    check.check_int("max_enqueued_requests", max_enqueued_requests, 1, None)
    startup.set_capacity(max_enqueued_requests=max_enqueued_requests)


def set_max_loaded(number: int) -> None:
    """The most servables that have workers, 0 (any number) unless set.  Of those that were started
    with `max_workers` over 0 and `min_workers` 0, the one that has not been used for the longest
    time gives way to one that is asked for, whose requests wait until it is loaded.

    Raises RuntimeError if it is not an int of at least 0.
    """
    check.check_int("max_loaded", number, 0, None)
    startup.set_capacity(max_loaded=number)


def set_shutdown_timeout(seconds: float) -> None:
    """In how many seconds after SIGTERM or SIGINT all is over, 25 unless set: at most 6 of them are
    for workers to leave, the others for requests to finish.

    Raises RuntimeError if it is not a number of at least 1.
    """
    check.check_number("shutdown_timeout", seconds, 1)
    startup.set_shutdown_timeout(seconds)
