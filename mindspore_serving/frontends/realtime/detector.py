"""Voice activity: how likely somebody speaks in each 32 ms of sound, by the model Silero VAD.

The model is the ONNX file in the package silero-vad, of which no code runs.  Knows no turn.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.resampling import resample
from mindspore_serving.errors import Unsupported
from mindspore_serving.extras import missing
from mindspore_serving.frontends.realtime.sound import Samples

WINDOW_MS = 32
_RATES = {8000: 8000, 24_000: 16_000}  # those of the model, by those of formats
_SEEN_MS = 4  # before a window, which the model sees again
_MARGIN = 48  # samples on each side of those that are resampled together
_STATE = (2, 1, 128)
_FILE = Path("data") / "silero_vad.onnx"
_INSTALL = "pip install --no-deps silero-vad"


@cache
def load_model() -> Any:
    """Return the model of this process, a session of ONNX Runtime that uses the calling thread.

    Raises Unsupported if a package is missing.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise Unsupported(missing(error, "voice activity detection")) from None
    package = find_spec("silero_vad")
    path = Path(package.origin).parent / _FILE if package and package.origin else None
    if path is None or not path.is_file():
        text = "voice activity detection needs the package silero-vad, which is not installed"
        raise Unsupported(f"{text}: {_INSTALL}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


class SpeechDetector:
    """The model over one stream of sound at `rate`, whose state it keeps."""

    def __init__(self, model: Any, rate: int) -> None:
        self._model, self._rate, self._model_rate = model, rate, _RATES[rate]
        self._window = self._model_rate * WINDOW_MS // 1000
        self.reset()

    def reset(self) -> None:
        """Forget all sound."""
        self._tail = np.zeros(_MARGIN, np.float32)
        self._rest = np.zeros(0, np.float32)  # less than a window
        self._seen = np.zeros(self._model_rate * _SEEN_MS // 1000, np.float32)
        self._state = np.zeros(_STATE, np.float32)

    def probabilities(self, samples: Samples) -> list[float]:
        """Return the probability of speech in each window that `samples` complete."""
        values = self._resampled(samples.astype(np.float32) / np.float32(32768))
        values = np.concatenate((self._rest, values))
        count = len(values) // self._window
        self._rest = values[count * self._window :]
        windows = values[: count * self._window].reshape(count, self._window)
        return [self._run(window) for window in windows]

    def _resampled(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self._rate == self._model_rate:
            return values
        values = np.concatenate((self._tail, values))
        # Three samples become two.
        count = max(0, (len(values) - 2 * _MARGIN) // 3 * 3)
        self._tail = values[count:]
        if not count:
            return values[:0]
        changed = resample(values[: count + 2 * _MARGIN], self._rate, self._model_rate)
        begin = _MARGIN * 2 // 3
        return changed[begin : begin + count * 2 // 3]

    def _run(self, window: npt.NDArray[np.float32]) -> float:
        sound = np.concatenate((self._seen, window))
        self._seen = sound[-len(self._seen) :]
        inputs = {"input": sound[None], "state": self._state, "sr": np.array(self._model_rate)}
        probability, self._state = self._model.run(None, inputs)
        return float(probability[0, 0])
