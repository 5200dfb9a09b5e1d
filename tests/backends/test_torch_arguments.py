"""Arguments of PyTorch programs that are numbers, or may be left out."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.backends.run import run_model
from mindspore_serving.batching.assemble import without_arguments
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable.repository import predict_method

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:`torch.jit")]
torch = pytest.importorskip("torch")
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


class Scaled(torch.nn.Module):
    def forward(  # noqa: PLR0917
        self,
        x: torch.Tensor,
        rate: int,
        gain: float = 2.0,
        is_negative: bool = False,
        shift: int | None = None,
        bias: torch.Tensor | None = None,
        name: str = "unused",
    ) -> torch.Tensor:
        y = x * rate * gain
        if is_negative:
            y = -y
        if shift is not None:
            y = y + shift
        return y if bias is None else y + bias


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    @torch.jit.export
    def reset_states(self):
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


class Text(torch.nn.Module):
    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("arguments")
    for name, module in (("scaled", Scaled()), ("counter", Counter()), ("text", Text())):
        torch.jit.script(module).save(str(directory / f"{name}.pt"))
    dynamic = {"x": {0: torch.export.Dim("rows")}, "rate": torch.export.Dim.AUTO, "gain": None}
    inputs = (torch.zeros(2, 2), 3, 2.0)
    program = torch.export.export(Scaled(), inputs, dynamic_shapes=dynamic)
    torch.export.save(program, directory / "scaled.pt2")
    return directory


@pytest.fixture
def scaled(files, opened):
    return opened("pytorch", files / "scaled.pt")


def settled(backend):
    return without_arguments(DeclaredModel("m", "pytorch", ("m.pt",)), backend.signature[0])


def scalars(*values):
    return tuple(np.array(value) for value in values)


def test_numbers_of_torchscript_are_inputs_with_their_defaults(scaled):
    inputs = scaled.signature[0].inputs
    assert [(spec.name, str(spec.dtype), spec.shape) for spec in inputs] == [
        ("x", "None", None),
        ("rate", "int64", ()),
        ("gain", "float64", ()),
        ("is_negative", "bool", ()),
        ("shift", "int64", None),
        ("bias", "None", None),
    ]
    method = predict_method("m", scaled.signature[0])
    assert list(method.defaults) == ["gain", "is_negative", "shift", "bias"]
    assert (method.defaults["gain"], method.defaults["shift"].size) == (2.0, 0)


def test_torchscript_gets_numbers_and_none(scaled):
    absent = np.empty(0)
    (y,) = scaled.run([X, *scalars(3, 0.5, True), absent, absent])
    np.testing.assert_array_equal(y, -X * 1.5)
    (y,) = scaled.run([X, *scalars(3, 1.0, False, 5), np.ones_like(X)])
    np.testing.assert_array_equal(y, X * 3 + 6)


def test_instances_share_a_batch_if_their_numbers_are_equal(scaled):
    rows = [(X[0], *scalars(1)), (X[1], *scalars(2)), (X[1], *scalars(1, 2.0))]
    outcomes = run_model(scaled, settled(scaled), 0, rows)
    expected = [X[0] * 2, X[1] * 4, X[1] * 2]
    for outcome, row in zip(outcomes, expected, strict=True):
        np.testing.assert_array_equal(outcome[0], row)


def test_a_number_of_another_type_is_refused(scaled):
    (outcome,) = run_model(scaled, settled(scaled), 0, [(X[0], np.array(1.5))])
    assert isinstance(outcome, InvalidInputs)
    assert "'rate' is float64 [], expected int64 []" in str(outcome)


def test_an_input_that_is_missing_is_refused(scaled):
    (outcome,) = run_model(scaled, settled(scaled), 0, [(X[0],)])
    assert "model inputs size 1 less than model inputs size 6" in str(outcome)


def test_a_text_without_a_default_is_refused(files, opened):
    with pytest.raises(StartError, match="input 1 'name' is of type str, which requests cannot"):
        opened("pytorch", files / "text.pt")


def test_states_of_torchscript_are_reset_before_each_run(files, opened):
    backend = opened("pytorch", files / "counter.pt")
    for _ in range(2):
        np.testing.assert_array_equal(backend.run([X])[0], X)


def test_an_exported_program_takes_its_free_numbers_and_keeps_constants(files, opened):
    backend = opened("pytorch", files / "scaled.pt2")
    x, rate = backend.signature[0].inputs
    assert (x.name, x.shape, rate.name, rate.dtype) == ("x", (-1, 2), "rate", np.int64)
    np.testing.assert_array_equal(backend.run([X, np.array(5)])[0], X * 10)


def test_silero_vad_takes_its_sampling_rate(opened):
    if not (package := find_spec("silero_vad")):
        pytest.skip("silero-vad has the file")
    path = Path(package.origin or "").parent / "data" / "silero_vad.jit"
    backend = opened("pytorch", path)
    assert [spec.name for spec in backend.signature[0].inputs] == ["x", "sr"]
    sound = np.random.default_rng(0).normal(0, 0.1, (3, 512)).astype(np.float32)
    expected = torch.jit.load(path)(torch.from_numpy(sound), 16000).detach().numpy()
    for _ in range(2):  # the state of the first run is not kept
        np.testing.assert_allclose(backend.run([sound, np.array(16000)])[0], expected, rtol=1e-4)
