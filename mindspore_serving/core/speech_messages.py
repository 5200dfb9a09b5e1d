"""Requests to models that write down speech, and the events that answer them.

Messages between a front end and the worker that has the model, like those of `llm_messages`. A
`Transcribe` is answered by any number of `Heard` and by `Transcribed`, or by `Refused` alone.
"""

import msgspec


class Transcribe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="transcribe"):
    """Request for the text of a recording.

    Args:
        file: content of a file of sound.
        language: code as "en"; "" has the model find it.
        translates: write the text in English.
        prompt: text before that of the recording, with names and spellings.
        temperature: of the sampling; 0 takes the likeliest tokens, and raises the temperature where
            these are poor.
        has_times: divide the text into segments with times; else a segment is a piece of sound.
        has_words: segments have the times of their words.
    """

    file: bytes
    language: str = ""
    translates: bool = False
    prompt: str = ""
    temperature: float = 0.0
    has_times: bool = False
    has_words: bool = False


class SpokenWord(msgspec.Struct, frozen=True, array_like=True):
    """Word with the space before it, from `start` to `end` in seconds."""

    text: str
    start: float
    end: float
    probability: float


class SpokenSegment(msgspec.Struct, frozen=True, array_like=True):
    """Part of the text, from `start` to `end` in seconds of the recording.

    `seek` is where the piece of sound begins that the model read. `mean_logprob` is that of the
    tokens, `compression` how often the text of the piece is longer than compressed: high if it
    repeats itself. `no_speech` is the probability that nobody speaks in the piece.
    """

    text: str
    start: float
    end: float
    tokens: tuple[int, ...]
    seek: float
    temperature: float
    mean_logprob: float
    compression: float
    no_speech: float
    words: tuple[SpokenWord, ...] = ()


class Heard(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The next segments, in order."""

    segments: tuple[SpokenSegment, ...]


class Transcribed(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """End of the text: the language, seconds of the recording, and counts of tokens."""

    language: str
    seconds: float
    num_prompt_tokens: int
    num_generated_tokens: int
