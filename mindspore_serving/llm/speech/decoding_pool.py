"""Processes that decode the files of recordings, within the limits of a model's options."""

import msgspec

from mindspore_serving.isolation.children import ForkServer
from mindspore_serving.isolation.pool import JobFailure, Pool, PoolLimits
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.sounds.decoding import Samples
from mindspore_serving.llm.speech import child
from mindspore_serving.llm.speech.sound_engine import to_error

MAX_WAITING = 64  # recordings by default
MAX_SOUND = 1 << 30  # bytes of all decoded recordings, unless there is one alone
DECODING_SECONDS = 120.0  # for a file
QUICK_SECONDS, LARGE_FILE = 5.0, 8 << 20  # a longer or larger one waits for its like alone
_DECODING_MEMORY = 512 << 20  # for a file, beside its samples
_SAMPLE_BYTES = 16_000 * 24  # a second of sound while it is decoded


def open_pool(config: EngineConfig) -> Pool:
    """Start the processes of one model."""
    setup = msgspec.msgpack.encode(child.SoundSetup(config.max_audio_seconds))
    limits = PoolLimits(
        seconds=DECODING_SECONDS,
        memory=_DECODING_MEMORY + int(config.max_audio_seconds * _SAMPLE_BYTES),
        max_waiting_bytes=MAX_SOUND,
        quick_seconds=QUICK_SECONDS,
        large=LARGE_FILE,
        max_slow=config.max_num_waiting or MAX_WAITING,
    )
    return Pool(ForkServer(child.MODULE, lambda: setup), child.DECODE, limits)


def samples_of(answer: bytes | JobFailure) -> Samples:
    """Return the samples of a file.  Raises InvalidField, or another ServingError."""
    if isinstance(answer, JobFailure):
        raise to_error(answer, "decoding the file")
    return child.decode_answer(answer)
