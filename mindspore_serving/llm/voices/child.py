"""Child process that turns texts into phonemes beside a worker, and that can be killed.

espeak-ng is a library of C that reads what clients send.  Run as
`python -m mindspore_serving.llm.voices.child`.
"""

import re
import socket
import unicodedata
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from mindspore_serving import log
from mindspore_serving.errors import InvalidField, ServingError
from mindspore_serving.isolation.fork_server import Role, answer_jobs, run

MODULE = "mindspore_serving.llm.voices.child"
READ = "read"  # the role
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])\s+")


class TextJob(msgspec.Struct, frozen=True, array_like=True):
    """A text, the language of espeak-ng ("": its letters are the phonemes), and clusters."""

    text: str
    language: str
    clusters: tuple[tuple[str, ...], ...]


class TextRead(msgspec.Struct, frozen=True, array_like=True):
    """Phonemes of each sentence, or why there are none."""

    sentences: list[list[str]]
    problem: str = ""


def load(setup: bytes) -> Mapping[str, Role]:
    """Start espeak-ng if it is installed; return the roles of the processes to fork."""
    try:
        from piper.phonemize_espeak import EspeakPhonemizer

        phonemizer = EspeakPhonemizer()
    except ModuleNotFoundError:
        phonemizer = None

    def read(stream: socket.socket) -> None:
        answer_jobs(stream, partial(_answer, phonemizer))

    return {READ: read}


def decode_answer(answer: bytes) -> list[list[str]]:
    """Return the sentences of an answer.  Raises InvalidField, or ServingError."""
    read = msgspec.msgpack.decode(answer, type=TextRead)
    if read.problem:
        raise ServingError(read.problem)
    if not any(phoneme.strip(" .,;:!?") for phonemes in read.sentences for phoneme in phonemes):
        raise InvalidField("text", "has nothing to speak, expected words")
    return read.sentences


def _answer(phonemizer: object, job: bytes) -> bytes:
    return encode_read(phonemizer, msgspec.msgpack.decode(job, type=TextJob))


def encode_read(phonemizer: object, job: TextJob) -> bytes:
    """Return the answer to a job."""
    return msgspec.msgpack.encode(_read(phonemizer, job))


def _read(phonemizer: object, job: TextJob) -> TextRead:
    lines = job.text.splitlines()  # espeak-ng would join the words at their ends
    if not job.language:
        sentences = (text for line in lines for text in _SENTENCE_END.split(line))
        return TextRead([list(unicodedata.normalize("NFD", text)) for text in sentences])
    read: Any = phonemizer
    clusters = set(job.clusters) or None
    try:
        rows = (row for line in lines for row in read.phonemize(job.language, line, clusters))
        return TextRead(list(rows))
    except MemoryError:
        raise
    except Exception:
        log.error("turning a text into phonemes", exc_info=True)
        problem = f"the text could not be turned into phonemes of {job.language}; see the log"
        return TextRead([], problem)


if __name__ == "__main__":
    run(load)
