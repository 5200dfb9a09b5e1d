"""Requests to models that transcribe or synthesize speech, and the events that answer them.

Messages between a front end and the worker that has the model, like those of `llm_messages`. A
`Transcribe` is answered by any number of `Heard` and by `Transcribed`, a `Speak` by any number of
`Spoken` and by `SpeechEnded`; each by `Refused` alone otherwise.
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
        beam_size: texts that are followed at temperature 0; 1 for no beam search.
        patience: factor for the number of complete texts that end the search.
        length_penalty: power of a text's length that divides its score in the search.
        has_times: divide the text into segments with times; else a segment is a piece of sound.
        has_words: segments have the times of their words.
    """

    file: bytes
    language: str = ""
    translates: bool = False
    prompt: str = ""
    temperature: float = 0.0
    beam_size: int = 1
    patience: float = 1.0
    length_penalty: float = 1.0
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


class Speak(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="speak"):
    """Request for the sound of a text.

    Args:
        text: to speak.
        voice: one of the model's card; "" for the first.
        language: code as "en-us", of models whose voices speak several; "" for that of the voice.
        format: of the sound, a name of SOUND_FORMATS.
        speed: of the speech, 1 for that of the voice.
    """

    text: str
    voice: str = ""
    language: str = ""
    format: str = "mp3"
    speed: float = 1.0


SOUND_FORMATS = {  # media types
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


class Spoken(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The next bytes of a sound, in the format of the request, and the number of their phonemes."""

    sound: bytes
    num_phonemes: int = 0


class SpeechEnded(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """End of the sound: its seconds, and the number of phonemes that were spoken."""

    seconds: float
    num_phonemes: int
