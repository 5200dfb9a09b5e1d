"""Writes a Hugging Face checkpoint as OpenVINO IR: convert_genai SOURCE TARGET float|int8|int4.

Runs in the environment llm_genai.  int8 has a scale per output, int4 one per 128 inputs, both
symmetric, as ours; the output matrix of int4 is int4 as well.
"""

import subprocess
import sys
from pathlib import Path

KINDS = {
    "float": ["--weight-format", "fp16"],
    "int8": ["--weight-format", "int8", "--sym"],
    "int4": ["--weight-format", "int4", "--sym", "--group-size", "128", "--all-layers"],
}


def main() -> None:
    source, target, kind = sys.argv[1:]
    tool = Path(sys.executable).with_name("optimum-cli")
    task = ["--task", "text-generation-with-past", "--model", source]
    subprocess.run([tool, "export", "openvino", *task, *KINDS[kind], target], check=True)


if __name__ == "__main__":
    main()
