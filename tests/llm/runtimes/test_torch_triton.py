"""The attention kernels, in Triton's interpreter and on a GPU, and compiled for absent GPUs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.torch import opening as torch_paths
from mindspore_serving.llm.runtimes.torch.attention import GatheredAttention, GatherPath
from mindspore_serving.llm.runtimes.torch.opening import AttentionSetting, deviation, open_kernels
from tests.llm import checkpoints
from tests.llm.torch_cases import CASES, TOLERANCE, Case, gather_error, kernel_error

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[3]
COUNT = 12
SPEC = AttentionSpec(4, 2, 16, 0.25)
FUSED_TOLERANCE = {"torch.float32": 1e-6, "torch.bfloat16": 2**-7}  # the interpreter cuts bits off
FLOAT = AttentionSetting(torch.float32, torch.float32, 16, "cpu")


def told(module: str, *arguments: str, **environment: str) -> Any:
    """What a program of ours prints, as JSON.  Triton must see the environment when it is first
    imported, so it is another process."""
    pytest.importorskip("triton")
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", f"tests.llm.{module}"]
    result = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def errors() -> dict[str, Any]:
    found: dict[str, Any] = told("torch_interpreted", "cases", TRITON_INTERPRET="1")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_compute_attention_by_its_definition(name: str, errors: dict[str, Any]) -> None:
    """The cache is NaN wherever no token is: whoever reads there is found out."""
    assert errors["attention"][name] < TOLERANCE[CASES[name].dtype]


def test_fused_operations_match_pytorch(errors: dict[str, Any]) -> None:
    for dtype, of_cases in errors["fused"].items():
        limit = FUSED_TOLERANCE[dtype]
        assert {name: error for name, error in of_cases.items() if not error < limit} == {}


@pytest.mark.parametrize("name", CASES)
def test_gathering_computes_attention_by_its_definition(name: str) -> None:
    assert gather_error(CASES[name], "cpu") < TOLERANCE[CASES[name].dtype]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "baichuan2-13b"])
def test_model_with_kernels_matches_the_reference(name: str, tmp_path: Path) -> None:
    """Plain attention; windows and softcap; ALiBi.  In pieces, then as graphs would."""
    from tests.llm.torch_interpreted import PROMPTS

    path = checkpoints.build(name, tmp_path)
    found = told("torch_interpreted", "tokens", str(path), str(COUNT), TRITON_INTERPRET="1")
    assert found["graphs"] >= COUNT
    for prompt, answer in zip(PROMPTS, found["answers"], strict=True):
        assert len(answer) == COUNT
        assert tuple(answer) == checkpoints.likeliest(path, prompt, answer)


@pytest.mark.parametrize("capability", [pytest.param("80", marks=pytest.mark.long), "90"])
def test_kernels_compile_for_absent_devices(capability: str, tmp_path: Path) -> None:
    kernels = told("torch_compiled", capability, TRITON_CACHE_DIR=str(tmp_path))
    assert len(kernels) == 5
    for kernel in kernels:
        assert kernel["bytes"] > 0
        assert kernel["shared"] <= 99 * 1024  # what the smallest of the devices since 8.0 give
        assert kernel["has_matrix_units"] == (kernel["name"] != "merge")


class Doubled(GatherPath):
    """Wrong by a factor of two."""

    def plan(self, layout: Any) -> Any:
        plan = super().plan(layout)

        class Wrong:
            arrays = plan.arrays

            def attention(self, arrays: Any) -> Any:
                right: GatheredAttention = plan.attention(arrays)

                class Attention:
                    def attend(self, *args: Any) -> torch.Tensor:
                        return 2 * right.attend(*args)

                return Attention()

        return Wrong()


def test_wrong_kernels_are_detected() -> None:
    assert deviation(GatherPath(16), SPEC, FLOAT) == 0
    assert deviation(Doubled(16), SPEC, FLOAT) == 1


def test_without_triton_there_are_no_kernels_and_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    package = import_module("mindspore_serving.llm.runtimes.torch")
    for name in ("kernels", "paged"):
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    lines = warnings(monkeypatch)
    assert open_kernels({SPEC}, FLOAT) is None
    assert len(lines) == 1
    assert lines[0].startswith("triton is not installed, so keys and values are gathered")


def test_failing_kernels_are_disabled_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton finds no device that it could compile for."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    properties = type("Properties", (), {"multi_processor_count": 4})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    lines = warnings(monkeypatch)
    assert open_kernels({SPEC}, FLOAT) is None
    assert len(lines) == 1
    assert lines[0].startswith("the attention kernel does not run here, so keys and values")


def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged from now on."""
    lines: list[str] = []
    monkeypatch.setattr(
        torch_paths.log, "warning", lambda text, *values: lines.append(text % values)
    )
    return lines


def in_bfloat16(case: Case) -> Case:
    return replace(case, dtype=torch.bfloat16, cache_dtype=torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_computes_attention_by_its_definition(name: str, is_narrow: bool) -> None:
    """As the case says, and all in bfloat16.  A GPU's powers of two are not as exact."""
    case = in_bfloat16(CASES[name]) if is_narrow else CASES[name]
    assert kernel_error(case, "cuda") < 5 * TOLERANCE[torch.float32] + TOLERANCE[case.dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpu_computes_fused_operations_as_pytorch_does(dtype: torch.dtype) -> None:
    from tests.llm import fused_cases

    limit = FUSED_TOLERANCE[str(dtype)]
    errors = {name: fused_cases.error(name, dtype, "cuda") for name in fused_cases.CASES}
    assert {name: error for name, error in errors.items() if not error < limit} == {}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_gpu_has_the_kernels(dtype: torch.dtype) -> None:
    """No warning: compiled, run, and near the path that gathers."""
    spec = AttentionSpec(32, 8, 128, 128**-0.5)
    assert open_kernels({spec}, AttentionSetting(dtype, dtype, 32, "cuda")) is not None
