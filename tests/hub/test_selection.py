"""The files that are downloaded of what a repository has."""

from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.errors import InvalidInputs, NotFound
from mindspore_serving.hub.selection import missing_parts, select
from mindspore_serving.hub.source import RemoteFile

SETTINGS = "config.json generation_config.json tokenizer.json tokenizer_config.json README.md"


def files(paths: str | Iterable[str]) -> list[RemoteFile]:
    return [RemoteFile(path, 10) for path in (paths.split() if isinstance(paths, str) else paths)]


def chosen(paths: str, requested: str = "") -> tuple[set[str], str]:
    selection = select(files(paths), requested)
    return {file.path for file in selection.files}, selection.entry


@pytest.mark.parametrize(
    ("available", "left_out"),
    [
        (f"{SETTINGS} model.safetensors", "pytorch_model.bin tf_model.h5 flax_model.msgpack"),
        (f"{SETTINGS} model.safetensors", "onnx/model.onnx onnx/model_q4.onnx rust_model.ot"),
        (f"{SETTINGS} model.safetensors", "model.fp16.safetensors consolidated.safetensors"),
        (f"{SETTINGS} model.safetensors", "original/consolidated.00.pth original/params.json"),
        (f"{SETTINGS} model.safetensors", "modeling_x.py run.sh a.ipynb .gitattributes logo.png"),
        (f"{SETTINGS} model.safetensors", "model-Q4_K_M.gguf coreml/a/model.mlmodel"),
        (f"{SETTINGS} model.safetensors", "training_args.bin runs/a/events.out optimizer.pt"),
        (
            f"{SETTINGS} model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
            "model.safetensors.index.json",
            "pytorch_model-00001-of-00001.bin pytorch_model.bin.index.json",
        ),
        ("config.json vocab.txt merges.txt chat_template.jinja model.safetensors", ""),
        ("config.json tokenizer.model qwen.tiktoken model.safetensors", "tokenizer.py"),
        ("config.json preprocessor_config.json processor_config.json model.safetensors", "a.jpg"),
        (
            "config.json modules.json config_sentence_transformers.json model.safetensors "
            "1_Pooling/config.json 2_Dense/config.json 2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin openvino/openvino_model.xml",
        ),
        ("adapter_config.json adapter_model.safetensors README.md", "adapter_model.bin"),
        ("params.json tekken.json consolidated.safetensors", "consolidated.pth"),
        (f"{SETTINGS} pytorch_model.bin", "rust_model.ot tf_model.h5"),
        ("net.mindir net_variables/data_0 labels.txt", "net.om"),
        ("config.json predict_x.yaml tokenizer.json a-1.ckpt", "train.py"),
        (
            "config.json rank_0/a.safetensors rank_1/a.safetensors strategy/ckpt_strategy_0.ckpt",
            "rank_0/a.py",
        ),
        ("saved_model.pb variables/variables.index variables/variables.data-00000-of-00001", ""),
        ("model.xml model.bin README.md", "model.py"),
        ("config.json tokenizer.json vocabulary.txt model.bin", "model.py"),
        ("det.onnx rec.onnx", "det.py"),
        ("inference.pdmodel inference.pdiparams inference.yml", ""),
    ],
)
def test_only_files_that_the_format_needs_are_chosen(available: str, left_out: str) -> None:
    assert chosen(f"{available} {left_out}") == (set(available.split()), "")


def test_a_single_model_file_below_the_top_is_served_by_its_path() -> None:
    paths, entry = chosen("config.json onnx/model.onnx onnx/model.onnx_data onnx/model_fp16.onnx")
    assert paths == {"config.json", "onnx/model.onnx", "onnx/model.onnx_data"}
    assert entry == "onnx/model.onnx"


GGUF = (
    "README.md config.json a-Q2_K.gguf a-Q4_K_M.gguf a-Q8_0.gguf mmproj-F16.gguf "
    "BF16/a-BF16-00001-of-00002.gguf BF16/a-BF16-00002-of-00002.gguf imatrix.dat"
)


@pytest.mark.parametrize(
    ("requested", "weights"),
    [
        ("", ["a-Q4_K_M.gguf"]),
        ("Q8_0", ["a-Q8_0.gguf"]),
        ("q2_k", ["a-Q2_K.gguf"]),
        ("a-Q2_K.gguf", ["a-Q2_K.gguf"]),
        ("mmproj-F16.gguf", ["mmproj-F16.gguf"]),
        ("BF16", ["BF16/a-BF16-00001-of-00002.gguf", "BF16/a-BF16-00002-of-00002.gguf"]),
        (
            "BF16/a-BF16-00001-of-00002.gguf",
            ["BF16/a-BF16-00001-of-00002.gguf", "BF16/a-BF16-00002-of-00002.gguf"],
        ),
    ],
)
def test_a_quantisation_of_gguf_is_chosen(requested: str, weights: list[str]) -> None:
    towers = {"mmproj-F16.gguf"} if "/" not in weights[0] else set()
    assert chosen(GGUF, requested) == ({"README.md", *towers, *weights}, weights[0])


def test_a_single_vision_tower_comes_with_gguf_files() -> None:
    towers = "mmproj-F32.gguf mmproj-BF16.gguf x.mmproj-F16.gguf mmproj-Q8_0.gguf"
    assert chosen(f"a-Q4_K_M.gguf {towers}") == ({"a-Q4_K_M.gguf", "mmproj-BF16.gguf"},
                                                 "a-Q4_K_M.gguf")  # fmt: skip
    assert chosen("a-Q8_0.gguf mmproj-F32.gguf")[0] == {"a-Q8_0.gguf", "mmproj-F32.gguf"}
    assert chosen("m/a-Q8_0.gguf mmproj-F16.gguf")[0] == {"m/a-Q8_0.gguf"}


def test_a_gguf_repository_without_the_default_has_the_nearest() -> None:
    assert chosen("a-Q8_0.gguf a-Q5_K_M.gguf a-IQ2_XS.gguf")[1] == "a-Q5_K_M.gguf"
    assert chosen("a-IQ2_XS.gguf a-IQ3_M.gguf")[1] == "a-IQ2_XS.gguf"


def test_a_quantisation_of_onnx_is_chosen() -> None:
    paths = "config.json onnx/model.onnx onnx/model_q4.onnx onnx/model_q4.onnx_data"
    weights = {"config.json", "onnx/model_q4.onnx", "onnx/model_q4.onnx_data"}
    assert chosen(paths, "q4") == (weights, "onnx/model_q4.onnx")


def test_gguf_beside_safetensors_is_chosen_by_its_quantisation() -> None:
    assert chosen("config.json model.safetensors a-Q8_0.gguf", "Q8_0") == (
        {"a-Q8_0.gguf"},
        "a-Q8_0.gguf",
    )


@pytest.mark.parametrize(
    ("paths", "requested", "problem"),
    [
        (GGUF, "Q4_K_S", "no file or quantisation 'Q4_K_S'; did you mean 'Q4_K_M'?; its quantis"),
        (GGUF, "Q4_K_S", "its quantisations are BF16, Q2_K, Q4_K_M, Q8_0"),
        ("a.onnx b.txt", "c.onnx", "its files are a.onnx, b.txt"),
        ("README.md train.py", "", "no model that is served; its files are README.md, train.py"),
        (".gitattributes", "", "it has no files"),
    ],
)
def test_a_repository_without_the_model_is_refused(
    paths: str, requested: str, problem: str
) -> None:
    with pytest.raises(NotFound) as error:
        select(files(paths), requested, "a/b")
    assert problem in str(error.value)


def test_a_large_text_is_no_setting() -> None:
    listed = [*files("model.safetensors merges.txt"), RemoteFile("corpus.txt", 10**9)]
    assert [file.path for file in select(listed).files] == ["merges.txt", "model.safetensors"]


def test_code_is_not_downloaded_by_its_name() -> None:
    with pytest.raises(NotFound):
        select(files("config.json model.safetensors run.py"), "run.py")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "a\\..\\b", "a\0"])
def test_a_path_that_leaves_the_directory_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputs, match="which is no relative path"):
        RemoteFile(path, 1)


def test_missing_parts_are_named() -> None:
    parts = ["m-00001-of-00003.safetensors", "m-00003-of-00003.safetensors"]
    assert missing_parts(files(parts)) == ["m-00002-of-00003.safetensors"]
    assert missing_parts(files("model.safetensors")) == []
    assert missing_parts(files(f"m-{part:05}-of-99999.gguf" for part in range(1, 3000))) == [
        "m-03000-of-99999.gguf"
    ]


def test_shards_of_onnx_data_belong_to_their_model() -> None:
    paths = "config.json onnx/model.onnx onnx/model.onnx_data onnx/model.onnx_data_1"
    assert chosen(f"{paths} onnx/model_q4.onnx_data_1") == (set(paths.split()), "onnx/model.onnx")


@given(st.lists(st.text("ab./-_0123456789ofgutsrn", min_size=1, max_size=30), max_size=20))
def test_hostile_names_of_files_are_contained(paths: list[str]) -> None:
    listed = []
    for path in paths:
        with suppress(InvalidInputs):
            listed.append(RemoteFile(path, 1))
    with suppress(NotFound):
        selection = select(listed)
        assert set(selection.files) <= set(listed)
        assert not any(file.path.startswith(("/", "..")) for file in selection.files)
