"""What the extras install, as pip has recorded it, and what is said where a module is missing."""

import importlib.metadata

import pytest

from mindspore_serving import extras
from mindspore_serving.cli import doctor, main

REQUIRES = [
    "numpy>=1.25",
    "openvino<2026.5,>=2026.4; extra == 'lite'",
    'tokenizers>=0.20; extra == "llm"',
    'openvino<2026.5,>=2026.4; extra == "llm"',
    'pyyaml>=6; extra == "llm"',
    'no-such-package>=1; extra == "odd"',
    'tokenizers>=0.20; extra == "examples"',
    'pytest>=8; (platform_system == "Linux") and extra == "dev"',
]


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: REQUIRES)


def test_each_extra_has_its_packages() -> None:
    assert {name: [*found] for name, found in extras.packages().items()} == {
        "lite": ["openvino"],
        "llm": ["tokenizers", "openvino", "pyyaml"],
        "odd": ["no-such-package"],
    }


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("tokenizers", "pip install 'mindspore-serving[llm]'"),
        ("tokenizers.models", "pip install 'mindspore-serving[llm]'"),
        ("openvino", "pip install 'mindspore-serving[llm]'"),
        ("yaml", "pip install 'mindspore-serving[llm]'"),
        ("no_such_package", "pip install 'mindspore-serving[odd]'"),
        ("somebody_elses", "pip install somebody-elses"),
    ],
)
def test_the_error_of_a_missing_module_names_the_extra(module: str, command: str) -> None:
    text = extras.missing(ModuleNotFoundError(name=module), "this")
    assert text == f"this needs {module}, which is not installed; install it with: {command}"


def test_without_a_record_the_package_itself_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(_: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert extras.packages() == {}
    assert extras.advice("yaml") == "install it with: pip install pyyaml"


def test_the_doctor_lists_the_missing_modules_of_every_extra(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["doctor"])
    text = capsys.readouterr().out
    assert "no-such-package MISSING; pip install 'mindspore-serving[odd]'" in text


def test_the_doctor_has_a_row_for_each_runtime_of_language_models(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor._RUNTIMES, "torch", ("no-torch-here", "pytorch", "torch"))
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("language models"))
    rows = {line.split()[0]: line for line in lines[first + 1 : first + 5]}
    assert [*rows] == ["openvino", "torch", "mindspore", "mindir"]
    assert "no: " in rows["torch"]
    assert "pip install 'mindspore-serving[torch]'" in rows["torch"]


def test_a_command_that_lacks_a_module_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object) -> int:
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")

    monkeypatch.setattr(doctor, "run", run)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == (
        "mindspore-serving: doctor needs tokenizers, which is not installed; install it with: "
        "pip install 'mindspore-serving[llm]'\n"
    )
