"""`mindspore-serving show` of files and directories: known sizes, verdicts and reasons."""

import json
import shutil
import zipfile

import numpy as np
import pytest

from mindspore_serving.cli import main
from tests.cli.conftest import WORDS, write_onnx
from tests.e2e.harness import ROOT
from tests.llm.voices.tiny import write_piper

TINY = ROOT / "examples/tiny_llm/model"


def card(capsys, path, *options):
    assert main(["show", str(path), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys, path, *options):
    assert main(["show", str(path), *options]) == 0
    return capsys.readouterr().out


@pytest.fixture
def copy(tmp_path):
    """Make a copy of the tiny model whose config.json has other values."""

    def make(**changes):
        directory = tmp_path / "copy"
        shutil.copytree(TINY, directory)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | changes))
        return directory

    return make


def test_a_checkpoint_has_its_parameters_and_the_bytes_of_its_cache(capsys) -> None:
    from safetensors.numpy import safe_open

    with safe_open(TINY / "model.safetensors", "numpy") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    count = sum(rows * (columns[0] if columns else 1) for rows, *columns in shapes)
    shown = card(capsys, TINY)
    assert shown["num_parameters"] == count
    assert shown["weight_bytes"] == 2 * count  # bfloat16
    assert shown["cache_bytes_per_token"] == 2 * 5 * 2 * 64 * 2  # 5 layers, 2 heads of 64, 16 bits
    assert shown["context_length"] == 1024
    assert shown["problem"] == ""
    assert shown["size_bytes"] == sum(file.stat().st_size for file in TINY.iterdir())


def test_a_runtime_of_float32_needs_twice_the_memory(capsys) -> None:
    ours, theirs = card(capsys, TINY), card(capsys, TINY, "--runtime", "mindspore")
    for name in ("weight_bytes", "cache_bytes_per_token"):
        assert theirs[name] == 2 * ours[name]


def test_the_text_has_a_line_for_each_fact(capsys) -> None:
    text = printed(capsys, TINY)
    for line in (
        "architecture   LlamaForCausalLM",
        "parameters     4.98 million",
        "context        1,024 tokens",
        "served by      runtime openvino: as stored",
        "cache 2.56 MB per 1,000 tokens",
    ):
        assert line in text


def test_the_licence_is_that_of_the_model_card(capsys, copy) -> None:
    directory = copy()
    (directory / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# A model\n")
    assert card(capsys, directory)["licence"] == "apache-2.0"
    (directory / "README.md").write_text("---\n&a [*a]\n---\n")  # hostile: contains itself
    (directory / "LICENSE").write_text("\n  Some \x1b[31m Licence\nmore")
    assert card(capsys, directory)["licence"] == "Some  [31m Licence (LICENSE)"


def test_an_unknown_architecture_is_refused_with_the_reason(capsys, copy) -> None:
    directory = copy(architectures=["LlamoForCausalLM"])
    shown = card(capsys, directory)
    assert "LlamaForCausalLM" in shown["problem"]
    assert shown["num_parameters"] > 0
    assert "NOT SERVED     config.json has architectures" in printed(capsys, directory)


def test_weights_that_do_not_fit_the_configuration_are_found(capsys, copy) -> None:
    assert "tensors that LlamaForCausalLM" in card(capsys, copy(num_hidden_layers=4))["problem"]


def test_gguf_has_its_types_licence_and_decoded_size(capsys, tmp_path) -> None:
    pytest.importorskip("gguf", reason="it writes the file")
    from tests.llm import gguf_files

    path = gguf_files.write_model(
        tmp_path / "model.gguf", kind="Q8_0", extra={"general.license": "mit"}, tied=True
    )
    shown = card(capsys, path)
    assert shown["stored"].startswith("GGUF, Q8_0")
    assert (shown["licence"], shown["computed"]) == ("mit", "integers kept")
    heads, layers = gguf_files.KV_HEADS * gguf_files.HEAD_DIM, gguf_files.LAYERS
    assert shown["cache_bytes_per_token"] == 2 * layers * heads * 2
    on_torch = card(capsys, path, "--runtime", "torch")
    assert on_torch["computed"] in ("floats of 32 bits", "floats of 16 bits")
    assert shown["num_parameters"] < shown["weight_bytes"] < 2 * shown["num_parameters"]


def test_a_modelfile_shows_its_model_and_options(capsys, tmp_path) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {TINY}\nPARAMETER temperature 0.5\n")
    text = printed(capsys, tmp_path / "Modelfile")
    assert "LlamaForCausalLM" in text
    assert "Modelfile      default_temperature=0.5" in text


def write_bert(directory) -> None:
    """One layer of 8 features, by the names of transformers."""
    from safetensors.numpy import save_file

    size, shapes = 8, {"embeddings.LayerNorm": (8,)}
    for name, rows in (("word", 20), ("position", 16), ("token_type", 2)):
        shapes[f"embeddings.{name}_embeddings.weight"] = (rows, size)
    parts = ("attention.self.query", "attention.self.key", "attention.self.value")
    for name in (*parts, "attention.output.dense", "intermediate.dense", "output.dense"):
        shapes[f"encoder.layer.0.{name}"] = (size, size)
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes[f"encoder.layer.0.{name}"] = (size,)
    tensors = {}
    for name, shape in shapes.items():
        whole = name.endswith(".weight")
        tensors[name if whole else f"{name}.weight"] = np.ones(shape, np.float32)
        tensors |= {} if whole else {f"{name}.bias": np.ones(size, np.float32)}
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    config = {"architectures": ["BertModel"], "vocab_size": 20, "hidden_size": size}
    config |= {"intermediate_size": size, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    (directory / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))


def test_an_encoder_embeds(capsys, tmp_path) -> None:
    write_bert(tmp_path / "bert")
    shown = card(capsys, tmp_path / "bert")
    assert (shown["task"], shown["problem"]) == ("embedding", "")
    assert (shown["context_length"], shown["cache_bytes_per_token"]) == (16, 0)
    assert shown["num_parameters"] == (20 + 16 + 2 + 2) * 8 + 6 * (64 + 8) + 2 * 16


@pytest.mark.onnx
def test_a_voice_has_its_speakers(capsys, tmp_path) -> None:
    file = write_piper(tmp_path, num_speakers=2, speaker_id_map={"ann": 0, "bob": 1})
    shown = card(capsys, file)
    assert (shown["kind"], shown["voices"]) == ("text-to-speech model", ["ann", "bob"])
    assert "served by     onnxruntime" in printed(capsys, tmp_path)
    file.with_name("tiny.onnx.json").write_text('{"phoneme_id_map": {}}')
    assert "NOT SERVED    tiny.onnx.json is wrong" in printed(capsys, file)


def test_an_onnx_file_has_the_tensors_of_its_graph(capsys, tmp_path) -> None:
    write_onnx(tmp_path / "net" / "net.onnx")
    shown = card(capsys, tmp_path / "net" / "net.onnx")
    assert (shown["kind"], shown["format"], shown["problem"]) == ("model file", "onnx", "")
    assert shown["inputs"][0] == {"name": "a", "dtype": "float32", "shape": [-1, 3]}
    assert shown["outputs"] == [{"name": "difference", "dtype": "float32", "shape": [-1, 3]}]
    assert "served by     onnxruntime" in printed(capsys, tmp_path / "net")


def test_the_model_in_an_archive_is_shown(capsys, tmp_path) -> None:
    write_onnx(tmp_path / "net" / "net.onnx")
    path = tmp_path / "net.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "net" / "net.onnx", "net.onnx")
    shown = card(capsys, path)
    assert (shown["path"], shown["size_bytes"]) == (str(path), path.stat().st_size)
    assert (shown["format"], shown["problem"]) == ("onnx", "")
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(tmp_path / "net" / "net.onnx", "other.onnx")
    (tmp_path / "both.zip").write_bytes(path.read_bytes())
    assert main(["show", str(tmp_path / "both.zip")]) == 1
    assert "unpack it, and show one of them: net.onnx, other.onnx" in capsys.readouterr().err


def test_a_pickle_is_refused_and_not_read(capsys, tmp_path) -> None:
    (tmp_path / "model.pkl").write_bytes(b"not even a pickle")
    assert main(["show", str(tmp_path / "model.pkl")]) == 1
    assert "is a pickle: loading it runs any code" in capsys.readouterr().err


def test_the_code_of_a_servable_is_not_run(capsys, tmp_path) -> None:
    (tmp_path / "servable_config.py").write_text(f"{WORDS}\nraise SystemExit('run')\n")
    assert "servable with servable_config.py" in printed(capsys, tmp_path)


def test_a_missing_path_is_answered_with_a_near_name(capsys, copy) -> None:
    missing = copy().parent / "coppy"
    assert main(["show", str(missing)]) == 1
    assert "did you mean 'copy'?" in capsys.readouterr().err


def test_a_directory_of_models_names_them(capsys, tmp_path) -> None:
    for name in ("a", "b"):
        write_onnx(tmp_path / name / "net.onnx")
    assert main(["show", str(tmp_path)]) == 1
    assert "several models, show one of them: a, b" in capsys.readouterr().err
