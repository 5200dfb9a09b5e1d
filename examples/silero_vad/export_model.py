"""Copy the model file of Silero VAD from the package silero-vad to silero_vad/1/, as it is.

The package is not imported, so PyTorch is not needed.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

TARGET = Path(__file__).resolve().parent / "silero_vad" / "1"


def main() -> None:
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps silero-vad==6.2.3")
    TARGET.mkdir(parents=True, exist_ok=True)
    source = Path(spec.origin).parent / "data" / "silero_vad.onnx"
    shutil.copyfile(source, TARGET / "silero_vad.onnx")
    print(f"wrote {TARGET / 'silero_vad.onnx'}")


if __name__ == "__main__":
    main()
