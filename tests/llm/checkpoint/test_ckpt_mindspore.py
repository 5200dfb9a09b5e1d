"""Reading what mindspore.save_checkpoint writes, tensor by tensor and as a whole model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("mindspore")

import mindspore
from safetensors.torch import load_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.encrypted import KEY
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]


def save(path: Path, arrays: dict[str, np.ndarray], **options: object) -> None:
    parameters = [{"name": n, "data": mindspore.Tensor(a)} for n, a in arrays.items()]
    mindspore.save_checkpoint(parameters, str(path), **options)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return tmp_path


@pytest.mark.parametrize("crc_check", [False, True])
def test_files_of_mindspore_are_read_bit_for_bit(directory: Path, crc_check: bool) -> None:
    random = np.random.default_rng(0)
    kinds = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    arrays = {kind: random.integers(0, 2, (3, 5)).astype(kind) for kind in kinds}
    arrays["scalar"] = np.array(1.5, np.float32)
    notes = {"epoch": 3, "note": "text"}
    save(directory / "a.ckpt", arrays, crc_check=crc_check, append_dict=notes)
    checkpoint = Checkpoint.open(directory)
    assert sorted(checkpoint.names()) == sorted([*arrays, "epoch"])
    for name, array in arrays.items():
        _, shape, bits = checkpoint.raw(name)
        assert shape == array.shape
        assert bits.flags.aligned
        assert bits.tobytes() == array.tobytes()


def test_a_tensor_that_mindspore_cuts_into_slices_is_put_together(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore cuts above 512 MiB; here above 1 KiB."""
    monkeypatch.setattr(mindspore.train.serialization, "SLICE_SIZE", 1)
    array = np.arange(1000, dtype=np.float32).reshape(10, 100)
    save(directory / "a.ckpt", {"w": array, "v": array[0]})
    content = (directory / "a.ckpt").read_bytes()
    assert content.count(b"\n\x01w") == 4
    checkpoint = Checkpoint.open(directory)
    np.testing.assert_array_equal(checkpoint.f32("w"), array)
    np.testing.assert_array_equal(checkpoint.f32("v"), array[0])


def test_bfloat16_is_read_as_its_bits(directory: Path) -> None:
    tensor = mindspore.Tensor(np.array([1.0, -2.5], np.float32)).astype(mindspore.bfloat16)
    mindspore.save_checkpoint([{"name": "w", "data": tensor}], str(directory / "a.ckpt"))
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.raw("w")[0] == "BF16"
    assert checkpoint.f32("w").tolist() == [1.0, -2.5]


def test_a_damaged_file_with_a_checksum_is_refused(directory: Path) -> None:
    path = directory / "a.ckpt"
    save(path, {"w": np.zeros(4, np.float32)}, crc_check=True)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # of the tensor's content, which the format itself does not protect
    path.chmod(0o600)
    path.write_bytes(content)
    with pytest.raises(StartError, match="damaged"):
        Checkpoint.open(directory)


SECRET = b"0123456789abcdef"


@pytest.mark.parametrize("key", [SECRET.decode(), f"hex:{SECRET.hex()}"])
@pytest.mark.parametrize("crc_check", [False, True])
@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC"])
def test_an_encrypted_file_is_read_with_the_key_of_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch, mode: str, crc_check: bool, key: str
) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "v": np.ones(2, np.int8)}
    options = {"enc_key": SECRET, "enc_mode": mode, "crc_check": crc_check}
    save(directory / "a.ckpt", arrays, **options)
    monkeypatch.setenv(KEY, key)
    checkpoint = Checkpoint.open(directory)
    np.testing.assert_array_equal(checkpoint.f32("w"), arrays["w"])
    assert checkpoint.raw("v")[2].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "a.ckpt is encrypted; set the environment variable MINDSPORE_SERVING_DEC_KEY to"),
        ("0123456789abcdeX", "a.ckpt: it cannot be decrypted: the dec_key is wrong"),
        ("short", "a.ckpt: The dec_key has 5 bytes, accepted are 16, 24 or 32"),
        ("hex:xy", "MINDSPORE_SERVING_DEC_KEY begins with hex:, expected hexadecimal digits"),
    ],
)
def test_an_encrypted_file_with_another_key_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, key: str, problem: str
) -> None:
    save(directory / "a.ckpt", {"w": np.zeros(4, np.float32)}, enc_key=SECRET)
    monkeypatch.setenv(KEY, key)
    with pytest.raises(StartError, match=problem):
        Checkpoint.open(directory)


@pytest.mark.parametrize("runtime", ["torch", "openvino"])
def test_a_model_in_a_ckpt_answers_as_the_reference(tmp_path: Path, runtime: str) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    model = checkpoints.build("llama", tmp_path)
    arrays = {name: t.numpy() for name, t in load_file(model / "model.safetensors").items()}
    target = tmp_path / "ckpt"
    target.mkdir()
    shutil.copy(model / "config.json", target)
    save(target / "model.ckpt", arrays)
    config = EngineConfig(dtype="f32", kv_cache_dtype="f32", kv_cache_memory=2**22)
    runner = open_runner(target, runtime, config)
    prompt = checkpoints.prompts(1)[0]
    row = Row(prompt, 0, list(range(-(-len(prompt) // runner.block_size))), len(prompt))
    expected = checkpoints.logits(model, prompt)
    np.testing.assert_allclose(runner.run(Step((row,))), expected, atol=1e-3)


@pytest.mark.parametrize("extra", ["adam_m.model.norm.weight", "lm_head.bias"])
def test_optimizer_states_in_a_ckpt_are_ignored_but_not_biases(tmp_path: Path, extra: str) -> None:
    """Also with the notes that MindSpore writes beside."""
    model = checkpoints.build("llama", tmp_path)
    arrays = {name: t.numpy() for name, t in load_file(model / "model.safetensors").items()}
    (model / "model.safetensors").unlink()
    own = {**arrays, extra: np.ones(64, np.float32)}
    save(model / "model.ckpt", own, append_dict={"epoch": 3, "lr": 0.1})
    if extra.startswith("adam"):
        assert set(open_definition(model)[0].names()) == set(arrays)
    else:
        with pytest.raises(StartError, match="does not have: 'lm_head.bias'"):
            open_definition(model)
