import os

import numpy as np
import pytest

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable import repository

METHOD = """
@register.register_method("y")
def same(x):
    return x
"""
NO_MODEL = "from mindspore_serving.server import distributed, register\n"


def make(servable, version=0):
    return repository.make_declaration(servable.directory, servable.name, version)


def refused(servable, version=0):
    with pytest.raises(StartError) as caught:
        make(servable, version)
    return str(caught.value)


def where(servable):
    return f"servable directory: '{servable.directory}', servable name: 'tiny'"


def test_version_zero_is_the_newest_directory(servable):
    servable.write(METHOD).add("1/add.mindir", "2/add.mindir", "10/add.mindir")
    declaration, version = make(servable)
    assert version == 10
    assert list(declaration.methods) == ["same"]
    assert list(declaration.models) == ["add.mindir"]


def test_a_version_can_be_specified(servable):
    servable.write(METHOD).add("1/add.mindir", "2/add.mindir")
    assert make(servable, 1)[1] == 1


def test_only_directories_named_by_a_number_are_versions(servable):
    servable.write(METHOD).add("2/add.mindir", "0/a", "01/a", "v3/a", "-4/a", "٣/a", "7")
    assert repository.versions(servable.directory, "tiny") == [2]


LLAMA = '{"architectures": ["LlamaForCausalLM"]}'


def write_checkpoints(root, *numbers):
    for number in numbers:
        (root / str(number)).mkdir(parents=True)
        (root / str(number) / "config.json").write_text(LLAMA)


def test_directories_of_checkpoints_are_versions_of_a_language_model(tmp_path):
    write_checkpoints(tmp_path / "chat", 1, 2)
    (tmp_path / "chat" / "3").mkdir()  # a copy that has begun
    assert repository.is_language_model(str(tmp_path / "chat"))
    for version, chosen in ((0, 2), (1, 1), (2, 2)):
        declaration, number = repository.make_declaration(str(tmp_path), "chat", version)
        assert number == chosen
        assert declaration.language.path == str(tmp_path / "chat" / str(chosen))


def test_a_version_without_checkpoint_is_refused(tmp_path):
    write_checkpoints(tmp_path / "chat", 1, 2)
    (tmp_path / "chat" / "3").mkdir()
    with pytest.raises(StartError, match=r"Version 3 of .*chat' has no checkpoint.* are 1, 2$"):
        repository.make_declaration(str(tmp_path), "chat", 3)


def test_a_model_file_beside_a_config_of_a_checkpoint_stays_a_model_file(tmp_path):
    write_checkpoints(tmp_path / "net", 1)
    (tmp_path / "net" / "1" / "net.onnx").write_bytes(b"")
    assert not repository.is_language_model(str(tmp_path / "net"))


def test_a_specified_version_must_exist(servable):
    servable.write(METHOD).add("1/add.mindir")
    assert refused(servable, 2) == (
        "Start servable failed: There is no specified version directory of models, specified "
        f"version number: 2, {where(servable)}"
    )


def test_models_need_a_version_directory(servable):
    servable.write(METHOD)
    assert refused(servable) == (
        "There is no valid version directory of models while there are models declared in "
        f"servable_config.py, {where(servable)}; put the models' files into "
        f"'{servable.directory}/tiny/1'"
    )


@pytest.mark.parametrize(
    "head",
    [
        NO_MODEL,
        NO_MODEL + "def f(x): return x\nregister.declare_model(f, 'Python')\n",
        NO_MODEL + "distributed.declare_servable(8, 1)\n",
    ],
)
def test_without_model_files_any_version_runs(servable, head):
    servable.write(METHOD, head)
    assert make(servable)[1] == 1
    assert make(servable, 7)[1] == 7


def test_without_model_files_the_newest_directory_still_counts(servable):
    servable.write(METHOD, NO_MODEL).add("3/notes.txt")
    assert make(servable)[1] == 3


def test_a_missing_directory_is_named(servable):
    assert refused(servable) == (
        f"Check servable config failed, directory '{servable.path}' not exist, {where(servable)}"
    )


def test_a_missing_servable_config_is_named(servable):
    servable.add("1/notes.txt")
    assert refused(servable).startswith(
        f"Check servable config failed, file '{servable.path / 'servable_config.py'}' not exist, "
    )


def test_a_bad_name_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(InvalidInputs, match="Parameter 'servable_name' should"):
        repository.make_declaration(str(tmp_path), "../tiny")


def test_a_missing_model_file_is_named(servable):
    servable.write(METHOD).add("1/other.mindir")
    text = refused(servable)
    assert text.startswith("Load model failed, servable directory: ")
    assert "model file: 'add.mindir', version number 1" in text
    assert f"'{servable.path / '1' / 'add.mindir'}' not exist" in text


def test_a_model_file_of_nearly_the_name_is_proposed(servable):
    servable.write(METHOD).add("1/Add.mindir", "1/other.onnx")
    assert "not exist; did you mean 'Add.mindir'?" in refused(servable)


def test_a_servable_of_nearly_the_name_is_proposed(servable, make_servable):
    make_servable("tinny").write(METHOD)
    assert refused(servable).endswith("; did you mean 'tinny'?")


def spec(*files, config_file=None):
    return DeclaredModel("m", "mindir", files, config_file=config_file)


def test_model_files_are_absolute_and_in_order(servable):
    servable.add("1/b.mindir", "1/a.mindir", "shared.mindir", "1/sub/c.mindir")
    given = spec("b.mindir", "a.mindir", "../shared.mindir", "sub/c.mindir")
    assert repository.model_paths(servable.directory, "tiny", 1, given) == tuple(
        str(servable.path / file)
        for file in ("1/b.mindir", "1/a.mindir", "shared.mindir", "1/sub/c.mindir")
    )


@pytest.mark.parametrize("file", ["../../secret", "../../tiny2/secret", "{absolute}", "../.."])
def test_a_model_file_outside_the_servable_is_refused(servable, file):
    (servable.path.parent / "tiny2").mkdir()
    for secret in (servable.path.parent / "secret", servable.path.parent / "tiny2" / "secret"):
        secret.write_text("secret")
    servable.add("1/add.mindir")
    file = file.format(absolute=servable.path / "1" / "add.mindir")
    with pytest.raises(StartError, match="should be a path inside the servable's directory"):
        repository.model_paths(servable.directory, "tiny", 1, spec(file))


def test_a_link_that_the_operator_placed_is_followed_and_keeps_its_name(servable, tmp_path):
    (tmp_path / "blob").write_bytes(b"model")
    servable.add("1/other")
    os.symlink(tmp_path / "blob", servable.path / "1" / "add.onnx")
    (path,) = repository.model_paths(servable.directory, "tiny", 1, spec("add.onnx"))
    assert path == str(servable.path / "1" / "add.onnx")


def test_a_config_file_is_relative_to_the_servable(servable, tmp_path):
    servable.add("lite.cfg")
    found = repository.config_path(servable.directory, "tiny", spec(config_file="lite.cfg"))
    assert found == str(servable.path / "lite.cfg")
    (tmp_path / "any.cfg").write_text("")
    absolute = str(tmp_path / "any.cfg")
    assert (
        repository.config_path(servable.directory, "tiny", spec(config_file=absolute)) == absolute
    )
    assert repository.config_path(servable.directory, "tiny", spec()) is None


def test_a_missing_config_file_is_named(servable):
    servable.write(METHOD, NO_MODEL + "register.declare_model('a', 'OM', config_file='no.cfg')\n")
    servable.add("1/a")
    text = refused(servable)
    assert "config file: 'no.cfg'" in text
    assert f"'{servable.path / 'no.cfg'}' not exist" in text


def tensors(*names):
    return tuple(TensorSpec(name, np.dtype("f4"), (-1, 2)) for name in names)


def test_the_predict_method_has_the_names_of_the_signature():
    signature = Signature(tensors("ids", "mask"), tensors("logits"))
    assert repository.predict_method("model.onnx", signature) == Method(
        name="predict",
        inputs=("ids", "mask"),
        outputs=("logits",),
        stages=(Stage(StageKind.MODEL, "model.onnx", (0, 1), (2,), tag="Model 'model.onnx'"),),
        returns=(2,),
    )


def test_names_are_made_different_and_printable():
    signature = Signature(tensors("", "a", "a", "a_2", " "), tensors("", "b\nc"))
    method = repository.predict_method("m", signature)
    assert method.inputs == ("x0", "a", "a_2", "a_2_2", "x4")
    assert method.outputs == ("y0", "b_c")
