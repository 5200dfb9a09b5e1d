"""Child process that decodes files of sound beside a worker, and that can be killed.

Run as `python -m mindspore_serving.llm.speech.child`.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import msgspec
import numpy as np

from mindspore_serving import log
from mindspore_serving.errors import InvalidField, InvalidInputs, ServingError
from mindspore_serving.isolation.fork_server import Role, answer_jobs, run
from mindspore_serving.llm.sounds.decoding import Samples, read_sound

MODULE = "mindspore_serving.llm.speech.child"
DECODE = "decode"  # the role


class SoundSetup(msgspec.Struct, frozen=True):
    """Limit of the files that are decoded."""

    max_seconds: float


class SoundRead(msgspec.Struct, frozen=True):
    """Samples of a file, int16 in this machine's order of bytes, or why it has none."""

    samples: bytes = b""
    problem: str = ""
    is_ours: bool = False  # the file is not to blame


def load(setup: bytes) -> Mapping[str, Role]:
    """Import the decoder; return the roles of the processes to fork."""
    limit = msgspec.msgpack.decode(setup, type=SoundSetup).max_seconds
    with suppress(ModuleNotFoundError):
        pass  # before any file

    def decode(stream: socket.socket) -> None:
        answer_jobs(stream, partial(_answer, limit))

    return {DECODE: decode}


def decode_answer(answer: bytes) -> Samples:
    """Return the samples of an answer.  Raises InvalidField, or ServingError."""
    read = msgspec.msgpack.decode(answer, type=SoundRead)
    if read.problem and read.is_ours:
        raise ServingError(read.problem)
    if read.problem:
        raise InvalidField("file", read.problem)
    return np.frombuffer(read.samples, np.int16)


def _answer(limit: float, file: bytes) -> bytes:
    try:
        read = SoundRead(read_sound(file, limit).tobytes())
    except InvalidInputs as error:
        read = SoundRead(problem=str(error))
    except MemoryError:
        raise
    except Exception:
        log.error("decoding a file of sound", exc_info=True)
        read = SoundRead(problem="the file could not be decoded; see the log", is_ours=True)
    return msgspec.msgpack.encode(read)


if __name__ == "__main__":
    run(load)
