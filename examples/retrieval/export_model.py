"""Make the model of minilm, which finds the passages; SmolLM2 and the passages are there."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    path = Path(__file__).resolve().parents[1] / "minilm" / "export_model.py"
    runpy.run_path(str(path), run_name="__main__")
