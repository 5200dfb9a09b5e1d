"""What is found at a path, by its content, and what is said of the rest."""

import errno
import os

import pytest

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable import bare, repository
from mindspore_serving.servable.discovery import discover

METHOD = """
@register.register_method("y")
def same(x):
    return x
"""
NO_MODEL = "from mindspore_serving.server import distributed, register\n"
_TORCH = b"PK\x03\x04" + 26 * b"\0" + b"net/data.pklFB"  # as torch.jit.save begins a file
HEADS = {
    "forest.json": b'{"learner":{"attributes":{}}}',
    "inference.json": b'{"base_code":{"magic":"pir"}}',
    "boosted.txt": b"tree\nversion=v4\n",
    "net.xml": b'<?xml version="1.0"?>\n<net name="m" version="11">',
    **{f"net.{ending}": _TORCH for ending in ("jit", "torchscript", "ts", "ptl", "old")},
}


def make(servable, version=0):
    return repository.make_declaration(servable.directory, servable.name, version)


def refused(servable, version=0):
    with pytest.raises(StartError) as caught:
        make(servable, version)
    return str(caught.value)


def write(servable, *files):
    """Files whose content is what their names promise."""
    for file in files:
        servable.add(file)
        content = HEADS.get(os.path.basename(file), b"model")
        (servable.path / file).write_bytes(content)
    return servable


def of(directory, *names):
    return [(str(directory), name) for name in names]


@pytest.mark.parametrize(
    ("file", "model_format"),
    [
        ("model.mindir", "mindir"),
        ("model.onnx", "onnx"),
        ("model.pt2", "pytorch"),
        ("model.pt", "pytorch"),
        ("net.jit", "pytorch"),
        ("net.torchscript", "pytorch"),
        ("net.ts", "pytorch"),
        ("net.ptl", "pytorch"),
        ("My Net.V2.ONNX", "onnx"),
        ("net.tflite", "openvino"),
        ("net.pdmodel", "openvino"),
        ("frozen.pb", "openvino"),
        ("net.xml", "openvino"),
        ("forest.json", "xgboost"),
        ("forest.ubj", "xgboost"),
        ("boosted.txt", "lightgbm"),
        ("boosted.cbm", "catboost"),
        ("pipeline.skops", "sklearn"),
    ],
)
@pytest.mark.parametrize("place", ["1/", ""])
def test_a_directory_with_a_model_file_is_a_servable(servable, file, model_format, place):
    write(servable, f"{place}{file}", f"{place}labels.txt", f"{place}config.json")
    declaration, version = make(servable)
    assert version == 1
    assert declaration.methods == {}
    inside = file if place else f"../{file}"
    spec = DeclaredModel(file, model_format, (inside,), with_batch_dim=None)
    assert declaration.models == {file: spec}
    (path,) = repository.model_paths(servable.directory, "tiny", 1, declaration.models[file])
    assert path == str(servable.path / place / file)


@pytest.mark.parametrize("file", ["net.onnx", "forest.json", "net.v2.mindir", "net.old"])
def test_a_model_file_is_a_servable(make_servable, tmp_path, file):
    write(make_servable("models"), file)
    directory = str(tmp_path / "models")
    declaration, version = repository.make_declaration(directory, file)
    assert version == 1
    (spec,) = declaration.models.values()
    assert spec.key == file
    assert repository.model_paths(directory, file, 1, spec) == (os.path.join(directory, file),)
    assert discover(os.path.join(directory, file)).servables == of(directory, file)
    assert bare.file_alias(directory, file) == file.rpartition(".")[0]


def test_a_saved_model_is_its_directory_with_all_files(make_servable):
    inner, outer = make_servable("inner"), make_servable("outer")
    write(inner, "1/net/saved_model.pb", "1/net/fingerprint.pb", "1/net/variables/data")
    write(outer, "1/saved_model.pb", "1/keras_metadata.pb", "1/variables/data")
    assert list(make(inner)[0].models) == ["net/saved_model.pb"]
    assert list(make(outer)[0].models) == ["saved_model.pb"]


def test_the_version_of_a_bare_model_is_chosen_like_any_other(servable):
    servable.add("1/model.onnx", "2/model.onnx")
    assert make(servable)[1] == 2
    assert make(servable, 1)[1] == 1
    assert "specified version number: 3" in refused(servable, 3)


def test_the_newest_version_of_a_bare_model_must_have_a_model(servable):
    servable.add("1/model.onnx", "2/notes.txt")
    text = refused(servable)
    assert "version 2 of" in text
    assert "has no model file" in text
    assert text.endswith("it has notes.txt")


def test_of_several_files_the_file_called_model_is_taken(servable):
    servable.add("1/model.onnx", "1/other.onnx", "1/more.mindir")
    assert list(make(servable)[0].models) == ["model.onnx"]


def test_two_bare_models_in_a_version_are_refused(servable):
    servable.add("1/a.onnx", "1/b.onnx")
    assert "There is more than one model in" in refused(servable)


def test_a_directory_of_several_files_is_a_servable_for_each(make_servable, tmp_path):
    write(make_servable("zoo"), "a.onnx", "b.pt2", "forest.json", "labels.txt", "config.json")
    found = discover(str(tmp_path / "zoo"))
    assert found.servables == of(tmp_path / "zoo", "a.onnx", "b.pt2", "forest.json")
    assert not found.refused


def test_of_several_files_with_the_same_stem_none_is_served(make_servable, tmp_path):
    write(make_servable("zoo"), "a.onnx", "a.pt2", "b.onnx")
    found = discover(str(tmp_path / "zoo"))
    assert found.servables == of(tmp_path / "zoo", "b.onnx")
    assert [str(refused) for refused in found.refused] == [
        f"{name}: a.onnx and a.pt2 would all be called 'a': give the path of one, or rename the "
        "others"
        for name in ("a.onnx", "a.pt2")
    ]


@pytest.mark.parametrize("more", ["model.onnx", "1/model.onnx", "config.pbtxt"])
def test_a_directory_of_several_files_may_be_a_servable_itself(make_servable, tmp_path, more):
    write(make_servable("zoo"), "a.onnx", "b.onnx", more)
    assert discover(str(tmp_path / "zoo")).servables == of(tmp_path, "zoo")


def test_two_bare_models_with_the_name_model_are_refused(servable):
    servable.add("1/model.onnx", "1/model.pt2")
    assert "There is more than one model in" in refused(servable)


def test_a_servable_config_wins_over_a_bare_model(servable):
    servable.write(METHOD, NO_MODEL).add("1/model.onnx", "net.onnx")
    assert make(servable)[0].models == {}


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model.pkl", "1/model.pkl is a pickle: loading it runs any code .* --allow-pickle"),
        ("forest.joblib", "skops.io.dump"),
        ("net.ckpt", "1/net.ckpt is a checkpoint, weights without .* mindspore.export"),
        ("net.om", "1/net.om is an offline model .* serve the MindIR or ONNX file"),
        ("model.h5", "Keras"),
        ("inference.json", "1/inference.json is of Paddle 3: write .pdmodel"),
        ("notes.md", "no model file, it has notes.md"),
        ("config.json", "no model file, it has config.json"),
        ("page.xml", "no model file"),
    ],
)
def test_refused_files_are_named_with_reason_and_advice(servable, file, words):
    write(servable, f"1/{file}")
    with pytest.raises(StartError, match=words):
        make(servable)
    with pytest.raises(StartError, match=words.replace("1/", "tiny: 1/")):
        discover(servable.directory)


def test_a_pickle_is_a_model_if_the_operator_allows_pickles(servable):
    servable.add("1/model.pkl")
    place = (servable.directory, servable.name)
    declaration, _ = repository.make_declaration(*place, allow_pickle=True)
    spec = declaration.models["model.pkl"]
    assert (spec.format, spec.allow_pickle) == ("sklearn", True)
    assert discover(servable.directory, allow_pickle=True).servables == of(*place)


@pytest.mark.parametrize(
    ("file", "backend"),
    [("net.onnx", "openvino"), ("net.mindir", "openvino"), ("net.mindir", "mindspore")],
)
def test_the_backend_of_a_bare_model_can_be_chosen(servable, file, backend):
    servable.add(f"1/{file}")
    declaration, _ = repository.make_declaration(servable.directory, servable.name, backend=backend)
    assert declaration.models[file].backend == backend


def test_a_backend_that_does_not_run_the_bare_model_is_refused(servable):
    servable.add("1/net.onnx")
    with pytest.raises(InvalidInputs, match="given 'mindspore' with model format onnx"):
        repository.make_declaration(servable.directory, servable.name, backend="mindspore")


def test_a_backend_beside_a_servable_config_is_refused(servable):
    servable.write(METHOD)
    with pytest.raises(InvalidInputs, match="declare_model.*backend='openvino'"):
        repository.make_declaration(servable.directory, servable.name, backend="openvino")


def test_a_bare_model_may_have_no_batch_dimension(servable):
    servable.add("1/net.onnx")
    place = (servable.directory, servable.name)
    declaration, _ = repository.make_declaration(*place, with_batch_dim=False)
    assert not declaration.models["net.onnx"].with_batch_dim


def test_no_batch_dimension_is_refused_for_other_than_bare_models(make_servable):
    config, talk = make_servable("config").write(METHOD), make_servable("talk")
    talk.add("model.gguf")
    for servable, text in (
        (config, "declare_model.*with_batch_dim=False"),
        (talk, "is a language model"),
    ):
        with pytest.raises(InvalidInputs, match=text):
            repository.make_declaration(servable.directory, servable.name, with_batch_dim=False)


def test_discover_finds_the_servables_of_a_directory(make_servable, tmp_path):
    make_servable("b").write(METHOD)
    make_servable("a").add("1/model.onnx")
    make_servable("c").add("1/weights.bin")
    make_servable("d").add("net.onnx")
    make_servable(".hidden").add("1/model.onnx")
    (tmp_path / "file").write_text("")
    found = discover(str(tmp_path))
    assert found.servables == of(tmp_path, "a", "b", "d")
    (text,) = map(str, found.refused)
    assert text.startswith("c: ")
    assert text.endswith("it has weights.bin")


def test_links_that_go_in_circles_keep_no_servable_down(make_servable, tmp_path):
    make_servable("good").add("1/model.onnx")
    (tmp_path / "good" / "2").symlink_to("2")
    (tmp_path / "good" / "1" / "other.onnx").symlink_to("other.onnx")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "self").symlink_to(".")
    found = discover(str(tmp_path))
    assert found.servables == of(tmp_path, "good")
    assert [str(one).partition(":")[0] for one in found.refused] == ["self"]
    assert repository.versions(str(tmp_path), "good") == [1]


def test_a_directory_that_cannot_be_read_keeps_no_other_down(make_servable, tmp_path, monkeypatch):
    for name in ("closed", "good"):
        make_servable(name).add("1/model.onnx")

    def list_some(path, real=os.listdir):
        if "closed" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", list_some)  # root may read all
    found = discover(str(tmp_path))
    assert found.servables == of(tmp_path, "good")
    (text,) = map(str, found.refused)
    assert text.startswith("closed cannot be read: [Errno 13] Permission denied")
    with pytest.raises(StartError, match=r"closed' cannot be read: .* Permission denied"):
        discover(str(tmp_path / "closed"))


@pytest.mark.parametrize("text", ["5", "null", '"architectures"', "[" * 100_000])
def test_a_config_that_is_no_object_is_no_language_models(make_servable, tmp_path, text):
    make_servable("good").add("1/model.onnx")
    make_servable("odd").add("config.json")
    (tmp_path / "odd" / "config.json").write_text(text)
    found = discover(str(tmp_path))
    assert found.servables == of(tmp_path, "good")
    assert [str(one).partition(":")[0] for one in found.refused] == ["odd"]


def test_discover_names_model_files_beside_directories_of_servables(make_servable, tmp_path):
    make_servable("a").add("1/model.onnx")
    (tmp_path / "net.onnx").write_bytes(b"model")
    (tmp_path / "old.pkl").write_bytes(b"model")
    first, second = map(str, discover(str(tmp_path)).refused)
    assert first.startswith("net.onnx lies beside directories of servables: give its own path")
    assert second.startswith("old.pkl is a pickle")


def test_discover_names_directories_with_models_that_are_not_served(make_servable, tmp_path):
    make_servable("good").add("1/model.onnx")
    make_servable("scaler").add("1/model.pkl")
    make_servable("notes").add("readme.md")
    (tmp_path / "old.pkl").write_bytes(b"model")
    names = [one.name for one in discover(str(tmp_path)).refused]
    assert names == ["", "scaler", ""]  # notes and old.pkl are no servables


def test_a_copy_of_a_torchscript_file_is_no_second_model(servable):
    write(servable, "1/net.jit", "1/net.old")
    assert list(make(servable)[0].models) == ["net.jit"]


@pytest.mark.parametrize("file", ["page.jit", "code.ts", "data.old"])
def test_a_file_that_is_no_archive_of_pytorch_is_no_model(make_servable, tmp_path, file):
    write(make_servable("models"), file)
    with pytest.raises(StartError, match="not a known model file"):
        discover(str(tmp_path / "models" / file))


def test_discover_takes_a_servable_itself(servable, make_servable):
    servable.write(METHOD)
    make_servable("bare").add("3/model.pt2")
    make_servable("direct").add("net.mindir", "net_variables/data_0")
    for name in ("tiny", "bare", "direct"):
        path = os.path.join(servable.directory, name)
        assert discover(path + "/").servables == of(servable.directory, name)


def test_discover_names_the_known_files(tmp_path):
    with pytest.raises(StartError, match=r"nor a directory in it has a servable_config.py, a"):
        discover(str(tmp_path))
    with pytest.raises(StartError, match="There is no file or directory"):
        discover(str(tmp_path / "none"))
    with pytest.raises(StartError, match="is written hf://Qwen/Qwen3-0.6B"):
        discover("Qwen/Qwen3-0.6B")
    for name in ("llama3.2", "qwen3:0.6b"):
        with pytest.raises(StartError, match=f"is written ollama://{name}"):
            discover(name)
    with pytest.raises(StartError, match="There is no file or directory '[^']*/no.onnx'$"):
        discover("no.onnx")


def test_discover_proposes_a_path_of_nearly_the_name(make_servable, tmp_path):
    make_servable("resnet50").add("1/model.onnx")
    with pytest.raises(StartError, match="did you mean 'resnet50'?"):
        discover(str(tmp_path / "resnet-50"))


def test_discover_refuses_a_name_that_cannot_be_served(make_servable, tmp_path):
    make_servable("my model").add("1/model.onnx")
    with pytest.raises(StartError, match="'my model'"):
        discover(str(tmp_path))
    with pytest.raises(InvalidInputs, match="'my model'"):
        discover(str(tmp_path / "my model"))
    make_servable("good").add("1/model.onnx")
    assert discover(str(tmp_path)).servables == of(tmp_path, "good")


def test_a_path_that_leaves_the_servable_is_refused(servable):
    servable.write("", NO_MODEL + "register.declare_model('../../net.onnx', 'ONNX')\n" + METHOD)
    servable.add("1/a")
    (servable.path.parent / "net.onnx").write_bytes(b"model")
    assert "should be a path inside the servable's directory" in refused(servable)
