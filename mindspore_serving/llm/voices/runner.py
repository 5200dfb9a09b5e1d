"""Runs the ONNX model of a voice by ONNX Runtime.  Knows no request."""

import os
from typing import Any

import numpy as np

from mindspore_serving import file_check
from mindspore_serving.errors import ServingError, StageFailed, StartError
from mindspore_serving.extras import command
from mindspore_serving.llm.voices.settings import Floats, PiperVoices, Voices

_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32}
_PIPER = ("input", "input_lengths", "scales")
_KOKORO = ("tokens", "style", "speed")
_SILENCE, _BEFORE, _AFTER = 0.01, 0.05, 0.3  # of full scale; seconds that are kept
_SHOWN = 300  # characters of an error of the library


class VoiceRunner:
    """The model of voices, for one thread.

    Args:
        voices: of the model.
        num_threads: of ONNX Runtime; None for all cores of this process.

    Raises:
        StartError: the library is missing, or the file is broken or no model of voices.
    """

    def __init__(self, voices: Voices, num_threads: int | None) -> None:
        self._voices = voices
        self._session = _open(voices, num_threads or len(os.sched_getaffinity(0)))
        self._types = {node.name: node.type for node in self._session.get_inputs()}
        self._check_inputs()
        try:  # a broken model fails now, and the first request is as fast as others
            self.speak([next(iter(voices.ids))], voices.voices[0], 1.0)
        except ServingError as error:
            raise StartError(f"{voices.model.name} cannot speak: {error}") from None

    @property
    def has_whole_speeds(self) -> bool:
        """Return whether the model takes only whole numbers as speed."""
        return self._types.get("speed") == "tensor(int32)"

    def speak(self, piece: list[str], voice: str, speed: float) -> Floats:
        """Return the samples of phonemes, from -1 to 1.

        Raises StageFailed.
        """
        voices = self._voices
        ids = voices.to_ids(piece)
        if isinstance(voices, PiperVoices):
            noise, length, noise_w = voices.scales
            values = {
                "input": [ids], "input_lengths": [len(ids)],
                "scales": [noise, length / speed, noise_w],
            }  # fmt: skip
            if voices.speakers:
                values["sid"] = [voices.speakers[voice]]
        else:
            name = "input_ids" if "input_ids" in self._types else "tokens"
            values = {name: [ids], "style": voices.style(voice, len(piece)), "speed": [speed]}
        feed = {key: np.asarray(value, _TYPES[self._types[key]]) for key, value in values.items()}
        try:
            samples = self._session.run(None, feed)[0].reshape(-1).astype(np.float32)
        except Exception as error:  # its classes share no base but Exception
            raise StageFailed(str(error)[:_SHOWN]) from None
        if not np.isfinite(samples).all():
            raise StageFailed("the model returned no finite samples")
        if isinstance(voices, PiperVoices):  # as Piper does
            loudest = float(np.abs(samples).max(initial=0.0))
            samples = samples / loudest if loudest >= 1e-8 else np.zeros_like(samples)
        clipped: Floats = np.clip(samples, -1.0, 1.0)
        return clipped

    def close(self) -> None:
        """Free the model."""
        del self._session

    def _check_inputs(self) -> None:
        is_piper = isinstance(self._voices, PiperVoices)
        expected = set(_PIPER if is_piper else _KOKORO)
        if isinstance(self._voices, PiperVoices) and self._voices.speakers:
            expected |= {"sid"}
        present = {"tokens" if name == "input_ids" else name for name in self._types}
        if present != expected or not all(kind in _TYPES for kind in self._types.values()):
            inputs = ", ".join(f"{name} {kind}" for name, kind in self._types.items()) or "none"
            kind = self._voices.architecture
            raise StartError(
                f"{self._voices.model.name} has the inputs {inputs}; those of a model of {kind} "
                f"are {', '.join(sorted(expected))}"
            )


def trim(samples: Floats, rate: int) -> Floats:
    """Return samples with short silence at both ends, where Kokoro leaves about a second."""
    loud = np.flatnonzero(np.abs(samples) > _SILENCE)
    if not len(loud):
        return samples
    begin = max(0, int(loud[0]) - int(_BEFORE * rate))
    return samples[begin : int(loud[-1]) + int(_AFTER * rate)]


def _open(voices: Voices, num_threads: int) -> Any:
    file = voices.model
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise StartError(f"voices need onnxruntime; {command('speech')}") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = num_threads
    # Threads that wait for work in a loop take a third of all processor time, and gain nothing.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=providers)
    except Exception as error:  # its classes share no base but Exception
        why = file_check.why_no_model(file) or f"is broken: {str(error)[:_SHOWN]}"
        raise StartError(f"{file.name} {why}") from None
