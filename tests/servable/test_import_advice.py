"""Mistakes in a servable_config.py, and what their errors say to do."""

import sys
from pathlib import Path

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.servable.loader import load
from tests.cli.conftest import WORDS

HEAD = "from mindspore_serving.server import register\n"
MISTAKES = {
    "a bracket": (HEAD + "\ndef f(x:\n    return x\n", r"line 3\); the line is 'def f\(x:'$"),
    "a missing library": (
        "import no_such_library.part\n",
        r"line 1\); install it with: pip install no-such-library \(with the pip of .*python",
    ),
    "a library of another name": ("import cv2\n", r"pip install opencv-python-headless \(with"),
    "a library of an extra": ("import skops.nothing\n", r"'mindspore-serving\[sklearn\]'"),
    "a misspelt module of Python": ("import jsn\n", r"line 1\); did you mean 'json'\?$"),
    "a misspelt module of ours": (
        "import mindspore_serving.server.registr\n",
        r"; did you mean 'register'\?$",
    ),
    "a misspelt import": (
        "from mindspore_serving.server import registr\n",
        r"ImportError, .*; did you mean 'register'\?$",
    ),
    "a misspelt function": (
        WORDS.replace("register.add_stage(join", "register.add_stge(join"),
        r"AttributeError, .*; did you mean 'add_stage'\?$",
    ),
    "a misspelt variable": (
        HEAD + "batch_size = 4\nprint(batch_sise)\n",
        r"NameError, .*; did you mean 'batch_size'\?$",
    ),
    "a misspelt argument": (
        WORDS.replace("output_names", "output_name"),
        r"TypeError, .*; did you mean 'output_names'\?$",
    ),
    "an argument of something else": (
        WORDS.replace("output_names", "dtype"),
        r"TypeError, .*; expected output_names",
    ),
    "no method": (HEAD, "There is no method registered for servable 'mistaken', decorate a func"),
    "a division": (HEAD + "1 / 0\n", r"division by zero \(ZeroDivisionError, .*, line 2\)$"),
    "an end": (HEAD + "raise SystemExit(3)\n", r"failed, 3 \(SystemExit, .*, line 2\)$"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_its_line_and_advice(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, text = MISTAKES[mistake]
    if mistake == "a library of another name":
        monkeypatch.setitem(sys.modules, "cv2", None)  # also where it is installed
    if mistake == "a library of an extra":
        monkeypatch.setitem(sys.modules, "skops", None)
    (tmp_path / "mistaken").mkdir()
    (tmp_path / "mistaken" / "servable_config.py").write_text(source)
    with pytest.raises(StartError, match=text):
        load(str(tmp_path), "mistaken")
