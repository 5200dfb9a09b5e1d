"""Tensors that a description names, against those of the loaded model; runs to warm it up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mindspore_serving.backends import described
from mindspore_serving.core.declaration import DeclaredModel, WarmUpInput, WarmUpSample
from mindspore_serving.core.sequences import ControlInput
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError

F32, I64 = np.dtype("float32"), np.dtype("int64")
X, Y = TensorSpec("x", F32, (-1, 2)), TensorSpec("y", F32, (-1, 2))


START = ControlInput("x", "start", "float32", (0, 1))


class Recorded:
    """A model that keeps its inputs."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec] = (Y,)) -> None:
        self.signature = (Signature(tuple(inputs), tuple(outputs)),)
        self.runs: list[list[Any]] = []

    def run(self, inputs: Sequence[Any], subgraph: int = 0) -> list[Any]:
        self.runs.append(list(inputs))
        return list(inputs)

    def close(self) -> None:
        raise NotImplementedError


def check(model: Recorded, file_format: str = "onnx", **fields: Any) -> Signature:
    spec = DeclaredModel("net", file_format, **fields)
    (signature,) = described.check(spec, model).signature
    return signature


def test_the_more_exact_of_two_shapes_is_that_of_requests() -> None:
    model = Recorded([TensorSpec("x", F32, (-1, -1, 3))])
    signature = check(model, inputs=(TensorSpec("x", F32, (-1, 2, -1)),))
    assert signature.inputs == (TensorSpec("x", F32, (-1, 2, 3)),)


def test_the_order_of_inputs_is_that_of_the_file() -> None:
    a, b = TensorSpec("a", F32, (-1,)), TensorSpec("b", I64, (-1,))
    assert check(Recorded([a, b]), inputs=(b, a)).inputs == (a, b)


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ({"name": "z"}, "control_input 'z' of model 'net': the model has no such input, it has x"),
        ({"dtype": "int32"}, "control_input 'x' of model 'net' is int32, but the model's input is"),
    ],
)
@pytest.mark.parametrize("inputs", [(), (X,)])
def test_control_inputs_are_inputs_of_the_model(
    inputs: tuple[TensorSpec, ...], control: dict[str, str], message: str
) -> None:
    assert check(Recorded([X]), inputs=inputs, controls=(START,)).inputs == (X,)
    with pytest.raises(StartError, match=message):
        check(Recorded([X]), inputs=inputs, controls=(replace(START, **control),))


def test_described_columns_are_the_names_of_a_row() -> None:
    row = TensorSpec("x", F32, (-1, 2))
    columns = (TensorSpec("b", None, None, example=2.0), TensorSpec("a", None, None, example=1))
    (x,) = check(Recorded([row]), "xgboost", inputs=columns).inputs
    assert (x.columns, x.example) == (("b", "a"), [2.0, 1])
    named = Recorded([TensorSpec("x", F32, (-1, 2), columns=("a", "b"))])
    (x,) = check(named, "xgboost", inputs=columns).inputs
    assert (x.columns, x.example) == (("a", "b"), [1, 2.0])
    with pytest.raises(StartError, match="has the columns a, b, described are a, c"):
        check(named, "xgboost", inputs=(columns[1], TensorSpec("c", None, None)))


def test_a_script_gets_names_by_their_numbers() -> None:
    names = ("IN__1", "IN__0")
    model = Recorded([TensorSpec(name, None, None) for name in ("self", "other")], [])
    signature = check(
        model,
        "pytorch",
        inputs=tuple(TensorSpec(name, F32, (-1, size)) for size, name in enumerate(names)),
        outputs=(TensorSpec("out", F32, (-1,)),),
    )
    assert [tensor.name for tensor in signature.inputs] == ["IN__0", "IN__1"]
    assert [tensor.shape for tensor in signature.inputs] == [(-1, 1), (-1, 0)]
    assert signature.outputs == (TensorSpec("out", F32, (-1,)),)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorSpec("z", F32, (-1, 2)), "has the inputs x, described are z"),
        (TensorSpec("x", I64, (-1, 2)), "has dtype float32, described is int64"),
        (TensorSpec("x", F32, (-1, 3)), r"has shape \[-1, 2\], described is \[-1, 3\]"),
        (TensorSpec("x", F32, (2,)), "the first dimension is left out of dims"),
    ],
)
def test_a_description_of_another_model_is_refused(tensor: TensorSpec, message: str) -> None:
    with pytest.raises(StartError, match=message):
        check(Recorded([X]), inputs=(tensor,))


def test_outputs_can_be_left_out_but_not_inputs() -> None:
    model = Recorded([X, TensorSpec("b", F32, (-1,))], [Y, TensorSpec("z", F32, (-1,))])
    assert [tensor.name for tensor in check(model, outputs=(Y,)).outputs] == ["y", "z"]
    with pytest.raises(StartError, match="has the inputs x, b, described are x"):
        check(model, inputs=(X,))


def test_a_model_runs_on_its_samples(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(np.array([1, 2], F32).tobytes())
    model = Recorded([X])
    samples = (
        WarmUpSample("zeros", {"x": WarmUpInput("float32", (2,))}, 3, 2),
        WarmUpSample("file", {"x": WarmUpInput("float32", (2,), file=f"{tmp_path}/raw")}, 2),
    )
    check(model, warm_up=samples)
    assert [run[0].tolist() for run in model.runs] == [[[0, 0]] * 3] * 2 + [[[1, 2]] * 2]


def test_a_file_of_another_size_warms_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(9))
    sample = WarmUpSample("s", {"x": WarmUpInput("float32", (2,), file=f"{tmp_path}/raw")})
    with pytest.raises(StartError, match="has not the 8 bytes"):
        check(Recorded([X]), warm_up=(sample,))


def test_a_sample_that_fails_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[Any]:
        raise StageFailed("no memory")

    monkeypatch.setattr(Recorded, "run", fail)
    sample = WarmUpSample("big", {"x": WarmUpInput("float32", (2,))}, 4)
    with pytest.raises(StartError, match="warm-up 'big' of model 'net' failed: no memory"):
        check(Recorded([X]), warm_up=(sample,))


def test_a_sample_names_the_inputs_of_the_model() -> None:
    sample = WarmUpSample("s", {"z": WarmUpInput("float32", (2,))})
    with pytest.raises(StartError, match="has the inputs z, the model has x"):
        check(Recorded([X]), warm_up=(sample,))
