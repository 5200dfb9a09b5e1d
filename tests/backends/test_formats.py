import subprocess
import sys

import numpy as np
import pytest

from mindspore_serving.backends import (
    available,
    check_device_id,
    choose_device,
    formats,
    open_backend,
)
from mindspore_serving.errors import StartError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that installs a package with one backend entry point, and its module."""

    def install(name, model_format, body):
        module = f"{name}_module"
        (tmp_path / f"{module}.py").write_text(body)
        metadata = tmp_path / f"{name}-1.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (metadata / "entry_points.txt").write_text(
            f"[mindspore_serving.backends]\n{model_format} = {module}:Doubling\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


DOUBLING = """
class Doubling:
    signature = ()
    @classmethod
    def load(cls, source):
        return cls()
    def run(self, inputs, subgraph=0):
        return [2 * array for array in inputs]
    def close(self):
        pass
"""


def test_a_package_can_add_a_format(package, source):
    package("doubling", "twice", DOUBLING)
    backend = open_backend(source("twice"))
    assert backend.run([np.array([1, 2])])[0].tolist() == [2, 4]


def test_a_package_can_take_over_a_format(package, source):
    package("doubling", "om", DOUBLING)
    assert open_backend(source("om")).run([np.array([3])])[0].tolist() == [6]


def test_two_packages_for_a_format_are_an_error_naming_both(package, source):
    package("doubling", "twice", DOUBLING)
    package("other", "twice", DOUBLING)
    with pytest.raises(StartError, match=r"'(doubling|other)' and '(doubling|other)'"):
        open_backend(source("twice"))


def test_a_package_that_cannot_be_imported_is_named(package, source):
    package("broken", "twice", "import no_such_library")
    with pytest.raises(StartError, match="package 'broken'.*no_such_library"):
        open_backend(source("twice"))


def test_unknown_format_error_lists_known_formats(source):
    with pytest.raises(
        StartError, match="'caffe' is unknown, known are: catboost, lightgbm, mindir, .*python"
    ):
        open_backend(source("caffe"))


def test_missing_library_error_names_the_install_command(source, monkeypatch):
    row = formats.FORMATS["onnx"]
    missing = formats.ModelFormat(row.target, "no_such_library", row.extra)
    monkeypatch.setitem(formats.FORMATS, "onnx", missing)
    with pytest.raises(StartError, match=r"pip install 'mindspore-serving\[onnx\]'"):
        open_backend(source("onnx"))


@pytest.fixture
def devices(tmp_path):
    """A function that makes a directory like /dev with some device files."""

    def make(*names):
        for name in names:
            (tmp_path / name).touch()
        return str(tmp_path)

    return make


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ((), "cpu"),
        (("nvidia0",), "gpu"),
        (("nvidiactl",), "cpu"),
        (("nvidia0", "davinci0"), "ascend"),
        (("davinci_manager",), "cpu"),
    ],
)
def test_the_first_of_ascend_gpu_and_cpu_is_chosen(devices, files, chosen):
    assert choose_device(None, ["python"], "add", directory=devices(*files)) == chosen
    assert choose_device("None", ["python"], "add", directory=devices(*files)) == chosen


def test_requested_device_type_ignores_case(devices):
    directory = devices("nvidia0")
    assert choose_device("CPU", ["python"], "add", directory=directory) == "cpu"
    assert choose_device("gpu", ["python"], "add", directory=directory) == "gpu"


def test_an_unsupported_device_type_is_an_error_that_lists_the_supported(devices):
    directory = devices("nvidia0")
    with pytest.raises(StartError) as caught:
        choose_device("Ascend", ["python"], "add", directory=directory)
    assert str(caught.value) == (
        "The device type 'ascend' of servable name add is inconsistent with current running "
        "environment, supported device type: None or 'GPU', 'CPU'; this machine has no Ascend "
        f"device (no file {directory}/davinci[0-9]*): leave the device type out to run on another, "
        "and see `mindspore-serving doctor`"
    )


@pytest.mark.onnx
def test_a_library_without_the_device_is_named_as_the_reason(devices):
    if "gpu" in formats.builds("onnx"):
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(StartError, match=r"onnxruntime .* format onnx, is installed for 'CPU': in"):
        choose_device("GPU", ["onnx"], "add", directory=devices("nvidia0"))


@pytest.mark.parametrize(
    ("files", "kind", "number"),
    [
        (("nvidia0", "nvidia1"), "gpu", 1),
        (("davinci3",), "ascend", 3),  # a container with one device
        (("davinci3",), "ascend", 0),
        ((), "cpu", 99),
        ((), "gpu", None),
    ],
)
def test_a_device_id_of_this_machine_is_accepted(devices, files, kind, number):
    check_device_id(kind, number, "add", directory=devices(*files))


@pytest.mark.parametrize("kind", ["gpu", "ascend"])
def test_a_device_id_that_this_machine_lacks_is_an_error(devices, kind):
    directory = devices("nvidia0", "nvidia1", "nvidiactl", "davinci0", "davinci1")
    text = (
        "device_ids of servable name add has 7, .* 2 (GPU|Ascend) devices .*: expected .* below 2"
    )
    with pytest.raises(StartError, match=text):
        check_device_id(kind, 7, "add", directory=directory)


@pytest.mark.onnx
def test_device_missing_in_any_librarys_build_is_unsupported(devices):
    if "gpu" in formats.builds("onnx"):
        pytest.skip("this ONNX Runtime has CUDA")
    directory = devices("nvidia0")
    assert choose_device(None, ["python", "onnx"], "add", directory=directory) == "cpu"


def test_a_model_that_no_device_here_can_run_is_an_error(devices):
    with pytest.raises(StartError, match="model formats: om, devices: 'CPU'"):
        choose_device(None, ["om"], "add", directory=devices())


def test_doctor_table_has_a_row_and_reason_per_format():
    rows = {row.format: row for row in available()}
    assert set(rows) == set(formats.FORMATS)
    assert rows["python"].problem is None
    assert rows["python"].devices[-1] == "cpu"
    for row in rows.values():
        assert (row.problem is None) == bool(row.devices)


def test_the_doctors_table_imports_no_library():
    code = (
        "import sys\n"
        "from mindspore_serving.backends import available, choose_device\n"
        "available(); choose_device(None, ['python'], 'add')\n"
        "print([m for m in ('mindspore', 'torch', 'onnxruntime') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.onnx
def test_probing_asks_the_library():
    from mindspore_serving.backends.devices import _probe

    assert "cpu" in _probe("onnx")
