import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from mindspore_serving.errors import StageFailed, StartError
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore:getName\\(\\) is deprecated:DeprecationWarning"),
]
KEY16, KEY32 = b"0123456789abcdef", b"0123456789abcdef0123456789abcdef"


def f32(*rows):
    return np.array(rows, np.float32)


def test_the_signature_has_the_names_types_and_shapes_of_the_cell(mindir, opened):
    (signature,) = opened("mindir", mindir / "add.mindir").signature
    assert [(spec.name, spec.dtype, spec.shape) for spec in signature.inputs] == [
        ("x1", np.float32, (2, 2)),
        ("x2", np.float32, (2, 2)),
    ]
    assert [(spec.name, spec.dtype, spec.shape) for spec in signature.outputs] == [
        ("output0", np.float32, (2, 2))
    ]


def test_dynamic_dimensions_and_all_outputs_are_in_the_signature(mindir, opened):
    (signature,) = opened("mindir", mindir / "two_open.mindir").signature
    assert [spec.shape for spec in signature.inputs] == [(-1, -1), (-1, -1)]
    assert [(spec.name, spec.shape) for spec in signature.outputs] == [
        ("output0", (-1, -1)),
        ("output1", (-1, -1)),
    ]


def test_a_model_of_open_shapes_runs_with_many_shapes_and_compiles_once(mindir, opened):
    backend = opened("mindir", mindir / "two_open.mindir")
    cell = backend._cells[0]
    compiled = len(cell.compile_cache)
    for shape in ((1, 1), (2, 3), (7, 2), (0, 4)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        total, difference = backend.run([x, x + 1])
        np.testing.assert_array_equal(total, 2 * x + 1)
        np.testing.assert_array_equal(difference, -np.ones(shape, np.float32))
    assert compiled == len(cell.compile_cache) == 1


def test_convolution_limits_onednn_to_a_fast_isa(mindir, opened, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    backend = opened("mindir", mindir / "convolve.mindir")
    image = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    (result,) = backend.run([image])
    window_sums = [[image[0, 0, i : i + 3, j : j + 3].sum() for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(result, np.array([[window_sums] * 2], np.float32))
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


def test_the_users_own_limit_for_oneDNN_is_kept(mindir, opened, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    opened("mindir", mindir / "convolve.mindir")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "SSE41"


def test_without_convolutions_oneDNN_is_left_alone(mindir, opened, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    opened("mindir", mindir / "add.mindir")
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def test_a_graph_that_writes_to_its_input_leaves_the_array_alone(mindir, opened):
    backend = opened("mindir", mindir / "in_place.mindir")
    given = f32([1, 2], [3, 4])
    for _ in range(2):
        (result,) = backend.run([given])
        np.testing.assert_array_equal(result, f32([4, 6], [8, 10]))
    np.testing.assert_array_equal(given, f32([1, 2], [3, 4]))


@pytest.mark.parametrize(("name", "key"), [("gcm", KEY16), ("cbc", KEY32)])
def test_an_encrypted_model_runs_with_its_key(mindir, opened, name, key):
    backend = opened(
        "mindir", mindir / f"add_{name}.mindir", dec_key=key, dec_mode=f"AES-{name.upper()}"
    )
    assert [spec.name for spec in backend.signature[0].inputs] == ["x1", "x2"]
    ones = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(backend.run([ones, ones])[0], 2 * ones)


@pytest.mark.parametrize(
    ("file", "lock", "text"),
    [
        ("add_gcm", (None, "AES-GCM"), "the file is encrypted, pass its key as dec_key"),
        ("add_gcm", (b"x" * 16, "AES-GCM"), "the dec_key is wrong or the file is damaged"),
        ("add_cbc", (b"x" * 16, "AES-CBC"), "the dec_key is wrong or the file is damaged"),
        (
            "add_gcm",
            (KEY16, "AES-CBC"),
            "it is encrypted with AES-GCM, but the dec_mode is AES-CBC",
        ),
        ("add_gcm", (b"short", "AES-GCM"), "The dec_key has 5 bytes, accepted are 16, 24 or 32"),
        (
            "add_gcm",
            (KEY16, "SM4-CBC"),
            "'SM4-CBC' is not supported, accepted are AES-GCM, AES-CBC",
        ),
        ("add", (KEY16, "AES-GCM"), "it is not encrypted, but a dec_key is given"),
    ],
)
def test_wrong_key_is_a_readable_error(mindir, opened, file, lock, text):
    key, mode = lock
    with pytest.raises(StartError, match=f"(?s){file}.mindir.*{text}") as caught:
        opened("mindir", mindir / f"{file}.mindir", dec_key=key, dec_mode=mode)
    assert "\n" not in str(caught.value)
    assert "short" not in str(caught.value)


def test_missing_empty_truncated_and_garbage_files_are_errors(mindir, opened, tmp_path):
    whole = (mindir / "add.mindir").read_bytes()
    contents = {"empty": b"", "garbage": b"what is this?", "cut": whole[: len(whole) // 2]}
    for name, content in contents.items():
        (tmp_path / f"{name}.mindir").write_bytes(content)
    for name in ("missing", *contents):
        path = tmp_path / f"{name}.mindir"
        with pytest.raises(StartError, match="Load model failed, model file: ") as caught:
            opened("mindir", path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_graph_with_collectives_is_refused_without_ranks(mindir, opened):
    with pytest.raises(StartError, match=r"communicates with other ranks \(AllReduce\)"):
        opened("mindir", mindir / "ranks.mindir")


def test_failed_run_gives_reason_and_model_keeps_working(mindir, opened):
    backend = opened("mindir", mindir / "add.mindir")
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(StageFailed, match="number of parameters") as caught:
        backend.run([ones])
    assert "C++ Call Stack" not in str(caught.value)
    np.testing.assert_array_equal(backend.run([ones, ones])[0], 2 * ones)


def test_two_models_run_in_two_threads_at_once(mindir, opened):
    backends = [opened("mindir", mindir / f"{name}.mindir") for name in ("add", "add_open")]
    wrong = []

    def work(backend, value):
        x = np.full((2, 2), value, np.float32)
        for _ in range(100):
            if not np.array_equal(backend.run([x, x])[0], 2 * x):
                wrong.append(value)

    threads = [
        threading.Thread(target=work, args=(backend, value))
        for value, backend in enumerate(backends, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_threads_are_set_once_and_ignored_options_are_logged(mindir, opened, monkeypatch):
    from mindspore import device_context

    from mindspore_serving import log
    from mindspore_serving.backends import mindir as mindir_module
    from mindspore_serving.backends import source as source_module

    # MindSpore takes a count once in a process, and this test may not be the first there.
    messages, counts = [], []
    monkeypatch.setattr(device_context.cpu.op_tuning, "threads_num", counts.append)
    monkeypatch.setattr(mindir_module, "_applied", {})
    monkeypatch.setattr(source_module, "_reported", set())
    monkeypatch.setattr(log, "warning", lambda text, *args: messages.append(text % args))
    options = {
        "thread_num": 2,
        "thread_affinity_core_list": [0],
        "device_list": [
            {"device_type": "cpu", "precision_mode": "fp16"},
            {"device_type": "ascend", "output_type": "FP16"},
        ],
    }
    for _ in range(2):
        opened("mindir", mindir / "add.mindir", options=options)
    named = sorted(text.split(" ")[1].split("=")[0] for text in messages)
    assert named == ["precision_mode", "thread_affinity_core_list"]
    assert counts == [2]


def test_settings_of_ascend_are_those_of_mindspore(source, monkeypatch):
    import mindspore
    from mindspore import device_context

    from mindspore_serving.backends import mindir as mindir_module
    from mindspore_serving.servable import context

    calls = {}
    monkeypatch.setattr(mindir_module, "_applied", {})
    known = device_context.ascend.op_precision.precision_mode.__doc__
    assert all(f"- {mode}:" in known for mode in context._ASCEND["precision_mode"])
    for group, names in mindir_module._ASCEND_SETTINGS.items():
        module = getattr(device_context.ascend, group)
        for name in names:  # fails if MindSpore has no such function
            monkeypatch.setattr(module, name, lambda value, name=name: calls.update({name: value}))
    options = {
        "precision_mode": "force_fp32",
        "op_precision_mode": "/op.ini",
        "matmul_allow_hf32": True,
        "conv_allow_hf32": False,
        "op_compile": True,
        "aoe_tune_mode": "offline",
        "aoe_job_type": "2",
    }
    devices = [context.AscendDeviceInfo(**options).context_map]
    mindir_module.apply_options(
        mindspore, source("mindir", "a", device_type="ascend", options={"device_list": devices})
    )
    assert calls == options


def test_om_file_is_refused_with_an_alternative(opened, tmp_path):
    (tmp_path / "model.om").write_bytes(b"om")
    with pytest.raises(
        StartError, match="an offline model .*serve the MindIR or ONNX file.*a backend for 'om'"
    ):
        opened("om", tmp_path / "model.om")


def test_the_signature_is_read_without_importing_mindspore(mindir):
    code = (
        "import sys\n"
        "from mindspore_serving.backends.base import ModelSource\n"
        "from mindspore_serving.backends.mindir_signature import read_graph_file\n"
        "from mindspore_serving.core.declaration import DeclaredModel\n"
        "source = ModelSource(DeclaredModel('k', 'mindir'), (sys.argv[1],))\n"
        "file = read_graph_file(source, sys.argv[1])\n"
        "print(file.has_convolution, 'mindspore' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(mindir / "convolve.mindir")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_no_threads_spin_for_operations_that_are_queued(mindir):
    """Those of MindSpore, by the names that it gives, go on for as long as the process lives, once
    an operation was queued.  Others whose names end so sleep."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from mindspore_serving.backends import ModelSource, open_backend\n"
        "from mindspore_serving.core.declaration import DeclaredModel\n"
        "path = sys.argv[1]\n"
        "backend = open_backend(ModelSource(DeclaredModel('k', 'mindir', (path,)), (path,)))\n"
        "backend.run([np.ones((2, 2), np.float32)])\n"
        "threads = [file.read_text() for file in Path('/proc/self/task').glob('*/comm')]\n"
        "print(*threads, sep='', flush=True)\n"
        "os._exit(0)\n"  # what is closed in order takes longer than the rest
    )
    command = [sys.executable, "-c", code, str(mindir / "bfloat16_input.mindir")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    threads = set(done.stdout.split())
    assert "ActorThread_0" in threads
    assert not threads & {"frontend_queue", "backend_queue"}


def test_outputs_missing_in_the_file_come_from_a_run(mindir, opened, tmp_path):
    from mindspore.train import mind_ir_pb2

    model = mind_ir_pb2.ModelProto()
    model.ParseFromString((mindir / "two_open.mindir").read_bytes())
    model.graph.output[0].ClearField("attr_info")
    path = tmp_path / "untold.mindir"
    path.write_bytes(model.SerializeToString())
    (signature,) = opened("mindir", path).signature
    assert [(spec.name, spec.dtype) for spec in signature.outputs] == [
        ("output0", np.float32),
        ("output1", np.float32),
    ]
