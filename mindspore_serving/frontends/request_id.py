"""The id of a request, in its answer and in the log: the client's own, or a new one."""

import itertools
import re
import secrets

NAME = b"x-request-id"
_is_good = re.compile(rb"[\w.:/+=-]{1,128}").fullmatch
_begin = b"req_%b" % secrets.token_hex(8).encode()  # no other server has it
_numbers = itertools.count(1)


def id_of(given: bytes | None) -> bytes:
    """`given` if a client may give it: 1 to 128 letters, digits and ._:/+=-; else a new one."""
    if given is not None and _is_good(given):
        return given
    return b"%b%08x" % (_begin, next(_numbers))
