"""Ids of requests, in answers and in the log: that of the client, or a new one."""

import itertools
import re
import secrets

NAME = b"x-request-id"
_is_valid = re.compile(rb"[\w.:/+=-]{1,128}").fullmatch
_prefix = b"req_%b" % secrets.token_hex(8).encode()  # differs for each server
_numbers = itertools.count(1)


def id_of(header: bytes | None) -> bytes:
    """Return the client's id if it is 1 to 128 letters, digits and ._:/+=-; else a new id."""
    if header is not None and _is_valid(header):
        return header
    return b"%b%08x" % (_prefix, next(_numbers))
