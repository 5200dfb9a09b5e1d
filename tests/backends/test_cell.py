"""Networks of MindSpore: an nn.Cell of a user's file with its checkpoint."""

import numpy as np
import pytest

from mindspore_serving.backends import open_backend
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.core.network import NetworkCode
from mindspore_serving.errors import StageFailed, StartError
from mindspore_serving.servable.network_file import declare_network, load_network
from tests.backends.networks import LENET

pytestmark = [pytest.mark.mindspore, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
mindspore = pytest.importorskip("mindspore", reason="MindSpore runs these networks")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Directory with lenet.py, and checkpoints of a LeNet that was trained for two steps."""
    directory = tmp_path_factory.mktemp("cells")
    (directory / "lenet.py").write_text(LENET)
    net = load_network(str(directory / "lenet.py"), "LeNet")(has_inputs=False)
    step = _trained(net)
    mindspore.save_checkpoint(step, str(directory / "trained.ckpt"))
    mindspore.save_checkpoint(net, str(directory / "net.safetensors"), format="safetensors")
    mindspore.save_checkpoint(
        net, str(directory / "secret.ckpt"), enc_key=b"0123456789abcdef", enc_mode="AES-GCM"
    )
    net.set_train(False)
    return directory, net


def _trained(net):
    from mindspore import nn

    loss = nn.WithLossCell(net_with_scores(net), nn.SoftmaxCrossEntropyWithLogits(sparse=True))
    step = nn.TrainOneStepCell(loss, nn.Adam(net.trainable_params(), 0.05))
    step.set_train()
    for seed in range(2):
        images = np.random.default_rng(seed).random((4, 1, 8, 8), np.float32)
        step(mindspore.Tensor(images), mindspore.Tensor(np.arange(4), mindspore.int32))
    return step


def net_with_scores(net):
    class Scores(mindspore.nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.net = net

        def construct(self, image):
            return self.net(image)[0]

    return Scores()


@pytest.fixture
def opened(directory):
    """A function that opens a network of lenet.py and closes it after the test."""
    backends = []

    def make(name="LeNet", weights="", dec_key=None, **code):
        path = str(directory[0] / weights) if weights else ""
        spec = declare_network(str(directory[0] / "lenet.py"), NetworkCode(name, path, **code))
        backends.append(open_backend(ModelSource(spec, spec.files, dec_key=dec_key)))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def images(count):
    return np.random.default_rng(count).random((count, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ("trained.ckpt", {}),
        ("net.safetensors", {"mode": "pynative"}),
        ("secret.ckpt", {"mode": "pynative", "dec_key": b"0123456789abcdef"}),
    ],
)
def test_a_trained_cell_is_equal_to_a_call_of_its_network(directory, opened, weights, options):
    backend = opened(weights=weights, **options)
    for count in (1, 3, 2):
        expected = directory[1](mindspore.Tensor(images(count)))
        scores, features = backend.run([images(count)])
        np.testing.assert_allclose(scores, expected[0].asnumpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(features, expected[1].asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_cell_tells_its_inputs_by_set_inputs(opened):
    (signature,) = opened(weights="trained.ckpt", mode="pynative").signature
    (image,) = signature.inputs
    assert (image.name, image.dtype, image.shape) == ("image", np.float32, (-1, 1, 8, 8))
    assert [output.name for output in signature.outputs] == ["output0", "output1"]


def test_a_function_makes_a_cell_with_arguments(opened):
    backend = opened("make", arguments={"num_classes": 7}, mode="pynative")
    assert backend.run([images(2)])[0].shape == (2, 7)


def test_scalars_of_a_graph_change_without_a_new_graph(opened):
    backend = opened("Scaled", inputs={"x": "float32[-1,2]"}, mode="graph")
    x = np.ones((3, 2), np.float32)
    (once,) = backend.run([x, np.array(1.0), np.array(1)])
    (six,) = backend.run([x[:2], np.array(-6.0), np.array(2)])
    np.testing.assert_allclose(six, once[:2] * 36, rtol=1e-5)
    x_spec, scale, power = backend.signature[0].inputs
    assert [spec.is_argument for spec in (x_spec, scale, power)] == [False, True, True]
    assert (scale.is_optional, power.is_optional, power.default) == (False, True, 1)


def test_a_graph_needs_shapes(opened):
    with pytest.raises(StartError, match=r"the type and shape of 'image' are unknown: describe it"):
        opened(arguments={"has_inputs": False}, mode="graph")


def test_a_cell_without_shapes_says_how_to_describe_them(opened):
    with pytest.raises(StartError, match=r"inputs image are unknown.*--inputs 'image=float32"):
        opened(arguments={"has_inputs": False})


def test_an_error_of_construct_is_that_of_the_request(opened):
    backend = opened(mode="pynative")
    with pytest.raises(StageFailed):
        backend.run([np.zeros((1, 2, 8, 8), np.float32)])


def test_weights_of_another_cell_are_named(opened):
    with pytest.raises(StartError) as caught:
        opened("Scaled", weights="net.safetensors")
    text = str(caught.value)
    assert "it does not fit the network: it lacks layer.weight, layer.bias; it has besides" in text


def test_a_wrong_shape_of_a_weight_is_named(opened):
    with pytest.raises(StartError, match=r"head.weight of shape \[4, 27\], expected \[9, 27\]"):
        opened(weights="trained.ckpt", arguments={"num_classes": 9})


def test_a_file_that_is_no_checkpoint_is_refused(directory, opened):
    (directory[0] / "bad.ckpt").write_bytes(b"not protobuf at all")
    with pytest.raises(StartError, match=r"bad.ckpt.*load error details"):
        opened(weights="bad.ckpt")


def test_the_arguments_of_a_constructor_that_fails_are_shown(opened):
    with pytest.raises(
        StartError, match=r"LeNet\(num_classes=-1\) raised ValueError, .*lenet.py, "
    ):
        opened(arguments={"num_classes": -1})
