"""Calibrated checkpoints, of a trained model: nearer to the floats, and what is refused."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino")

from mindspore_serving.cli import main as serving
from mindspore_serving.errors import StartError
from mindspore_serving.llm.calibration.calibrate import windows
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor, write_safetensors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.part import open_part
from mindspore_serving.llm.quantize import Rounding, quantize
from mindspore_serving.llm.runtimes.openvino.opening import open_runner
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.stepping import all_logits, relative_error

EXAMPLE = Path(__file__).parents[3] / "examples" / "tiny_llm"
MODEL = EXAMPLE / "model"
LARGE, TIMES = (3, 50, 77), 64.0
EXACT = {"dtype": "f32", "kv_cache_dtype": "f32", "max_num_seqs": 1, "kv_cache_memory": 2**24}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two halves of what the model has not read: to calibrate with, and to compare by."""
    text = (EXAMPLE / "held_out.txt").read_text("utf-8")
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(text[: len(text) // 2])
    return path, text[len(text) // 2 :]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """The model with channels that are as large as those of large models: norms are multiplied, and
    what reads them is divided, so that it computes the same."""
    target = tmp_path_factory.mktemp("uneven") / "model"
    shutil.copytree(MODEL, target)
    checkpoint = Checkpoint.open(MODEL)
    tensors = []
    for name in checkpoint.names():
        array = checkpoint.f32(name).copy()
        if name.endswith("layernorm.weight"):
            array[list(LARGE)] *= TIMES
        elif re.search(r"[qkv]_proj|gate_proj|up_proj", name):
            array[:, list(LARGE)] /= TIMES
        tensors.append((name, StoredTensor("F32", array.shape, array)))
    write_safetensors(target, tensors, {})
    return target


def logits(directory, text):
    tokens = Tokenizer.open(MODEL).encode(text)[:300]
    runner = open_runner(directory, EngineConfig(**EXACT))
    found = all_logits(runner, tokens)
    runner.close()
    return found


def test_a_calibrated_model_is_nearer_to_the_floats(uneven, texts, tmp_path):
    text, other = texts
    wanted = logits(uneven, other)
    np.testing.assert_allclose(wanted, logits(MODEL, other), atol=2e-3)
    for zeros in ("no", "yes"):
        form = Rounding(64, zeros)
        quantize(uneven, tmp_path / f"plain-{zeros}", "int4", rounding=form)
        found = quantize(
            uneven, tmp_path / f"scaled-{zeros}", "int4", rounding=form, text=text, num_tokens=1024
        )
        plain, scaled = (
            relative_error(logits(tmp_path / f"{kind}-{zeros}", other), wanted)
            for kind in ("plain", "scaled")
        )
        assert scaled < 0.8 * plain
        assert max(one.error_ratio for one in found.scaled) <= 1.0
        assert found.unscaled == ()


def test_zero_points_and_small_groups_are_nearer_to_the_floats(texts, tmp_path):
    wanted, errors = logits(MODEL, texts[1]), []
    for number, form in enumerate(
        (Rounding(128, "no"), Rounding(128, "auto"), Rounding(32, "yes"))
    ):
        quantize(MODEL, tmp_path / str(number), "int4", rounding=form)
        errors.append(relative_error(logits(tmp_path / str(number), texts[1]), wanted))
    assert errors == sorted(errors, reverse=True)


def test_adapters_of_the_float_model_are_refused(uneven, texts, tmp_path):
    quantize(uneven, tmp_path / "q", "int8", text=texts[0], num_tokens=512)
    assert open_part(tmp_path / "q", EngineConfig()).size == 1
    with pytest.raises(StartError, match="was calibrated, which scales the inputs of LoRA"):
        open_part(tmp_path / "q", EngineConfig(max_loras=1))


def test_invalid_calibrations_are_refused(texts, tmp_path):
    with pytest.raises(StartError, match="mode is 'float16', but only int8 and int4"):
        quantize(MODEL, tmp_path / "q", "float16", text=texts[0])
    with pytest.raises(StartError, match=r"nowhere.txt cannot be read as UTF-8 text"):
        quantize(MODEL, tmp_path / "q", "int4", text=tmp_path / "nowhere.txt")
    (tmp_path / "short.txt").write_text("Too short.")
    with pytest.raises(StartError, match="tokens, expected at least 256"):
        quantize(MODEL, tmp_path / "q", "int4", text=tmp_path / "short.txt")
    with pytest.raises(StartError, match="group is 48, expected one of 32, 64, 128"):
        Rounding(48)
    with pytest.raises(StartError, match="zeros is 'some', expected one of no, yes, auto"):
        Rounding(64, "some")
    assert not (tmp_path / "q").exists()


def test_windows_are_from_all_over_the_text():
    found = windows(range(10_000), 2048)
    assert [len(one) for one in found] == [512] * 4
    assert (found[0][0], found[-1][-1]) == (0, 9_999)
    assert windows(range(600), 4096) == [list(range(512))]


def test_the_command_counts_the_scaled_matrices(texts, tmp_path, capsys):
    given = ["--mode", "int4", "--group", "64", "--zeros", "auto", "--tokens", "512"]
    target = str(tmp_path / "q")
    assert serving(["quantize", str(MODEL), target, *given, "--calibrate", str(texts[0])]) == 0
    shown = capsys.readouterr().out
    layers = Checkpoint.open(MODEL).config["num_hidden_layers"]
    expected = (
        rf"Scaled the inputs of {7 * layers} matrices: the error of their products is 0\.\d\d"
    )
    assert re.match(expected, shown)
