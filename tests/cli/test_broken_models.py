"""Broken models beside a good one: `serve` says of each what it is and what to do."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, Command
from tests.cli.conftest import write_words
from tests.ports import free_port
from tests.test_file_check import PAGE, POINTER

pytestmark = pytest.mark.e2e
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
POINTED = "is a Git LFS pointer, not the file itself (of 988097824 bytes): run `git lfs install`"
# Path below the directory of models: content; and what is said of it.
FILES = {
    "pointer/config.json": json.dumps(LLAMA).encode(),
    "pointer/model.safetensors": POINTER,
    "fetching/config.json": json.dumps(LLAMA).encode(),
    "fetching/model.safetensors.incomplete": b"",
    "comma/config.json": b'{"architectures": ["LlamaForCausalLM"],}',
    "comma/model.safetensors": b"",
    "gguf/model.gguf": POINTER,
    "onnx/1/model.onnx": POINTER,
    "page/1/model.onnx": PAGE,
    "empty/1/model.onnx": b"",
    "bracket/servable_config.py": b"def f(x:\n    return x\n",
    "library/servable_config.py": b"import no_such_library\n",
}
SAID = {
    "pointer": f"/pointer/model.safetensors {POINTED}",
    "fetching": "the download model.safetensors.incomplete has not ended: wait for it",
    "comma": "its config.json is not JSON: ",
    "gguf": f"/gguf/model.gguf {POINTED}",
    "onnx": f"load error details: the file {POINTED}",
    "page": "load error details: the file is a web page (HTML)",
    "empty": "load error details: the file is empty: copy or download it again",
    "bracket": "bracket/servable_config.py, line 1); the line is 'def f(x:'",
    "library": "line 1); install it with: pip install no-such-library (with the pip of ",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What `serve` prints of all of them, and of the good servable "words"."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    directory: Path = write_words(tmp_path_factory.mktemp("broken") / "models")
    for name, content in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    words = [*SERVING, "serve", "models", "--http-port", str(free_port()), "--no-grpc"]
    with Command(words, directory.parent) as command:
        command.says("Ctrl-C stops")
        yield command.text


@pytest.mark.parametrize("name", SAID)
def test_a_broken_model_is_named_with_the_cause_and_the_remedy(text: str, name: str) -> None:
    (line,) = [line for line in text.splitlines() if line.startswith(f"Not served: {name}")]
    assert SAID[name] in line


def test_a_good_model_beside_broken_models_is_served(text: str) -> None:
    assert "words, version 1, 1 worker\n" in text
    assert "success" not in text
