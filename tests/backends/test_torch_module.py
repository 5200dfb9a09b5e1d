"""Networks of PyTorch: an nn.Module of a user's file with its state dictionary."""

import numpy as np
import pytest

from mindspore_serving.backends import open_backend
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.core.network import NetworkCode
from mindspore_serving.errors import StageFailed, StartError
from mindspore_serving.servable.network_file import declare_network, load_network
from tests.backends.networks import MODULE

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch runs these networks")
X = np.random.default_rng(1).random((3, 3), np.float32)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Directory with net.py, and checkpoints of a Net that was trained for two steps."""
    from safetensors.torch import save_file, save_model

    directory = tmp_path_factory.mktemp("modules")
    (directory / "net.py").write_text(MODULE)
    (directory / "sizes.py").write_text("WIDTH = 3\n")
    code = load_network(str(directory / "net.py"), "Net")
    net = code()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        net(torch.from_numpy(X)).scores.square().sum().backward()
        optimizer.step()
    state = net.state_dict()
    save_file(state, directory / "net.safetensors")
    torch.save(state, directory / "net.pt")
    lightning = {"epoch": 3, "state_dict": {f"model.{name}": t for name, t in state.items()}}
    torch.save(lightning, directory / "lightning.ckpt")
    torch.save(net, directory / "pickle.pt")
    torch.save([1, 2], directory / "list.pt")
    save_model(load_network(str(directory / "net.py"), "Tied")(), directory / "tied.safetensors")
    return directory, net.eval()


@pytest.fixture
def opened(directory):
    """A function that opens a network of net.py."""

    def make(name="Net", weights="", **code):
        path = str(directory[0] / weights) if weights else ""
        spec = declare_network(str(directory[0] / "net.py"), NetworkCode(name, path, **code))
        return open_backend(ModelSource(spec, spec.files))

    return make


@pytest.mark.parametrize("weights", ["net.safetensors", "net.pt", "lightning.ckpt"])
def test_a_module_is_equal_to_a_call_of_its_network(directory, opened, weights):
    backend = opened(weights=weights)
    with torch.no_grad():
        expected = directory[1](torch.from_numpy(X), 2.0)
    scores, features = backend.run([X, np.array(2.0)])
    np.testing.assert_array_equal(scores, expected.scores.numpy())
    np.testing.assert_array_equal(features, expected.features.numpy())


def test_a_module_tells_inputs_and_outputs_by_type_hints(opened):
    (signature,) = opened().signature
    x, scale = signature.inputs
    assert (x.name, x.dtype, x.shape) == ("x", np.float32, (-1, 3))
    assert (scale.name, scale.dtype, scale.default) == ("scale", np.float64, 1.0)
    assert [(output.name, output.shape) for output in signature.outputs] == [
        ("scores", (-1, 4)),
        ("features", (-1, 5)),
    ]


def test_an_optional_tensor_that_is_described_is_an_input(opened):
    backend = opened(inputs={"mask": "float32[-1,5]"})
    assert [spec.name for spec in backend.signature[0].inputs] == ["x", "scale", "mask"]
    scores, features = backend.run([X, np.array(1.0), np.zeros((3, 5), np.float32)])
    assert not features.any()


def test_without_shapes_a_type_hint_counts_the_outputs(opened):
    (signature,) = opened("Tied").signature
    assert signature.inputs[0].shape is None
    assert len(signature.outputs) == 1


def test_tied_weights_are_in_a_safetensors_file_once(opened):
    backend = opened("Tied", weights="tied.safetensors")
    assert backend.run([np.ones((2, 2), np.float32)])[0].shape == (2, 2)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ("pickle.pt", "contains Python objects besides tensors"),
        ("list.pt", "it holds no dictionary of tensors by name: save net.state_dict()"),
        ("tied.safetensors", "it does not fit the network: it lacks body.0.weight"),
        ("net.py", "it is no checkpoint of PyTorch"),
    ],
)
def test_a_file_that_has_no_weights_of_the_module_is_refused(opened, weights, problem):
    with pytest.raises(StartError, match=problem):
        opened(weights=weights)


def test_a_pickle_is_not_run(directory, opened, tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    torch.save({"w": Evil()}, directory[0] / "evil.pt", pickle_module=pickle)
    with pytest.raises(StartError, match="save net.state_dict"):
        opened(weights="evil.pt")
    assert not (tmp_path / "ran").exists()


def test_an_input_that_is_no_parameter_is_refused(opened):
    with pytest.raises(StartError, match=r"input 'z' is described, but is no parameter: it has x,"):
        opened(inputs={"z": "float32[1]"})


def test_an_output_that_is_no_batch_keeps_its_shape(opened):
    (signature,) = opened("Square", inputs={"x": "float32[-1,3]"}).signature
    assert [output.shape for output in signature.outputs] == [(3, 3)]


def test_sizes_that_a_module_refuses_are_explained(opened):
    with pytest.raises(StartError, match="sizes of 1 for its open dimensions, as the log says"):
        opened(inputs={"x": "float32[-1,-1]"})


def test_an_error_of_forward_is_that_of_the_request(opened):
    with pytest.raises(StageFailed, match="shapes cannot be multiplied"):
        opened().run([np.ones((1, 2), np.float32), np.array(1.0)])


def test_a_module_has_no_graph_mode(opened):
    with pytest.raises(StartError, match="export the network by torch.export"):
        opened(mode="graph")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Nett", "has no class or function 'Nett'; did you mean 'Net'?"),
        ("NoNetwork", "is no mindspore.nn.Cell and no torch.nn.Module"),
    ],
)
def test_a_name_that_is_no_network_is_refused(opened, name, problem):
    with pytest.raises(StartError) as caught:
        opened(name)
    assert problem in str(caught.value)


def test_the_line_of_a_file_that_cannot_be_imported_is_shown(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import json\n\nvalue = json.lods('1')\n")
    with pytest.raises(StartError) as caught:
        load_network(str(path), "Net")
    text = str(caught.value)
    assert f"AttributeError, {path}, line 3" in text
    assert "did you mean 'loads'?" in text


def test_the_framework_of_a_function_is_that_of_its_file(opened):
    spec = opened("anything", inputs={"input": "float32[-1,1]"})
    assert spec.run([np.ones((2, 1), np.float32)])[0].shape == (2, 1)
