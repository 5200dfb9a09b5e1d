"""MindIR on CPU, GPU or Ascend through MindSpore.

One compiled graph per file.  All compiling and running of a process holds one lock: MindSpore
crashes or hangs when threads overlap in it.  Knows no batches.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.mindir_signature import GraphFile, read_graph_file
from mindspore_serving.backends.source import (
    SourceOptions,
    check_files,
    check_signature,
    error_text,
    load_error,
    warm_up,
)
from mindspore_serving.core.value import Signature
from mindspore_serving.errors import StageFailed, StartError

LOCK = threading.RLock()
_applied: dict[str, Any] = {}
_ASCEND_SETTINGS = {  # modules of mindspore.device_context.ascend -> options of AscendDeviceInfo
    "op_precision": (
        *("precision_mode", "op_precision_mode"),
        *("matmul_allow_hf32", "conv_allow_hf32"),
    ),
    "op_tuning": ("op_compile", "aoe_tune_mode", "aoe_job_type"),
}
_SWITCHES = {"true": True, "false": False}
TARGETS = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend"}


class MindirBackend:
    """A MindIR model; if it has several files, each sub-graph has its own weights."""

    def __init__(
        self, mindspore: Any, cells: list[Any], files: list[GraphFile], source: ModelSource
    ) -> None:
        self._mindspore = mindspore
        self._cells = cells
        self._must_copy = [file.writes_inputs for file in files]
        self._bfloat16_inputs = [file.bfloat16_inputs for file in files]
        # Outputs that a file does not describe are read from a warm-up run.
        self.signature = tuple(self._warm_up(source, i, file) for i, file in enumerate(files))

    @classmethod
    def device_types(cls) -> tuple[str, ...]:
        """Return the device types that the installed MindSpore can use, by asking MindSpore."""
        mindspore = import_mindspore()
        available = []
        for device in ("ascend", "gpu"):
            try:
                if mindspore.hal.is_available(TARGETS[device]):
                    available.append(device)
            except (RuntimeError, ValueError):  # for a target that this build does not know
                continue
        return (*available, "cpu")

    @classmethod
    def load(cls, source: ModelSource) -> "MindirBackend":
        """Load, compile and warm up every file.

        `source.dec_key` is for encrypted files only.  Files with collective operators are for the
        agents of distributed servables.
        """
        check_files(source)
        files = [read_graph_file(source, path) for path in source.paths]
        if source.device_type == "cpu" and any(file.has_convolution for file in files):
            # oneDNN reads it at its first use.  On CPUs with AVX-512, MindSpore's oneDNN runs
            # convolutions in reference code, 30 times slower; without convolutions the limit only
            # costs time.
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
        mindspore = import_mindspore()
        with LOCK:
            set_device(mindspore, source)
            _meet_ranks(source, files)
            apply_options(mindspore, source)
            cells = [
                _load_cell(mindspore, source, path, file)
                for path, file in zip(source.paths, files, strict=True)
            ]
            return cls(mindspore, cells, files, source)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run a graph; see `Backend.run`.  The results may also alias `inputs`."""
        with LOCK:
            try:
                result = self._cells[subgraph](*self._tensors(inputs, subgraph))
                return [to_array(leaf) for leaf in _leaves(result)]
            except Exception as error:  # MindSpore raises every kind; all are this run's failure
                raise StageFailed(error_text(error)) from error

    def close(self) -> None:
        """Drop the compiled graphs and their weights."""
        with LOCK:
            self._cells.clear()

    def _tensors(self, inputs: Sequence[Array], subgraph: int) -> list[Any]:
        """Return tensors over the arrays' memory, or over copies if the graph writes to them."""
        if self._must_copy[subgraph]:
            inputs = [array.copy() for array in inputs]
        make = self._mindspore.Tensor.from_numpy
        tensors = [make(array if array.flags.aligned else array.copy()) for array in inputs]
        for index in self._bfloat16_inputs[subgraph]:
            tensors[index] = tensors[index].astype(self._mindspore.bfloat16)
        return tensors

    def _warm_up(self, source: ModelSource, index: int, file: GraphFile) -> Signature:
        path = source.paths[index]
        signature = check_signature(source, path, file.signature)
        known = warm_up(lambda arrays: self.run(arrays, index), signature, source, path)
        if not known.outputs:
            raise load_error(source, path, "it does not name its outputs and could not be run")
        return known


def import_mindspore() -> Any:
    """Import MindSpore, with logging of errors only unless GLOG_v is set."""
    # MindSpore reads its log level at import; this package reads the same variable, so it is reset.
    is_quiet = "GLOG_v" not in os.environ
    if is_quiet:
        os.environ["GLOG_v"] = "3"  # noqa: SIM112
    try:
        import mindspore
    finally:
        if is_quiet:
            del os.environ["GLOG_v"]  # noqa: SIM112
    if int(np.__version__.split(".")[0]) >= 2:
        log.warning(
            "numpy %s is installed, but MindSpore %s is built for numpy 1: its operators will fail "
            "with numpy scalars; install 'numpy<2'",
            np.__version__,
            mindspore.__version__,
        )
    return mindspore


def _meet_ranks(source: ModelSource, files: list[GraphFile]) -> None:
    """Start communication if a graph has collective operators; without it they end the process."""
    pairs = zip(source.paths, files, strict=True)
    communicating = next((pair for pair in pairs if pair[1].collectives), None)
    if communicating is None:
        return
    from mindspore.communication import init
    from mindspore.communication._comm_helper import GlobalComm

    if GlobalComm.INITED:
        return
    path, file = communicating
    reason = f"it communicates with other ranks ({', '.join(file.collectives)})"
    if "RANK_TABLE_FILE" not in os.environ:  # this process is no agent
        raise load_error(
            source,
            path,
            f"{reason}; serve it with distributed.declare_servable, or call "
            "mindspore.communication.init() first",
        )
    if source.device_type == "cpu" and "MS_ROLE" not in os.environ:
        raise load_error(
            source,
            path,
            f"{reason}, which connect by a scheduler on a CPU: set MS_ROLE=MS_WORKER, "
            "MS_WORKER_NUM, MS_SCHED_HOST and MS_SCHED_PORT for the agents",
        )
    try:
        init()
    except Exception as error:
        raise load_error(
            source, path, f"{reason}, which did not connect: {error_text(error)}"
        ) from error


def set_device(mindspore: Any, source: ModelSource) -> None:
    """Choose the device of `source` for this process.  Raises StartError."""
    target = TARGETS[source.device_type]
    device = (target,) if target == "CPU" else (target, source.device_id)
    try:
        mindspore.set_device(*device)
    except Exception as error:
        # After the first operation, even setting the current device again fails.
        current = (mindspore.get_context("device_target"), mindspore.get_context("device_id"))
        if current[: len(device)] != device:
            raise StartError(
                f"MindSpore cannot use device {target} {source.device_id}: {error_text(error)}"
            ) from error
    if target == "CPU":
        # Set before the first operation; otherwise the threads of the operation queue spin from
        # then on, and slow bfloat16 inputs and other computations in this process.
        mindspore.runtime.launch_blocking()


def apply_options(mindspore: Any, source: ModelSource) -> None:
    """Apply the options for which MindSpore has a setting."""
    options = SourceOptions(source)
    if source.device_type == "cpu":
        tuning = mindspore.device_context.cpu.op_tuning
        _apply_once("thread_num", options.take("thread_num"), tuning.threads_num)
    if source.device_type == "ascend":
        for group, names in _ASCEND_SETTINGS.items():
            settings = getattr(mindspore.device_context.ascend, group)
            for name in names:
                value = options.take(name)
                _apply_once(name, _SWITCHES.get(value, value), getattr(settings, name))
    options.report_ignored()


def _apply_once(name: str, value: Any, apply: Callable[[Any], None]) -> None:
    """Apply a setting that can be made only once in a process, even to the same value."""
    if value is None or _applied.get(name) == value:
        return
    try:
        apply(value)
    except RuntimeError as error:
        log.warning("Option %s=%r is ignored, MindSpore already has it set: %s", name, value, error)
    except (ValueError, TypeError) as error:
        raise StartError(
            f"MindSpore refuses option {name}={value!r}: {error_text(error)}"
        ) from error
    else:
        _applied[name] = value


def _load_cell(mindspore: Any, source: ModelSource, path: str, file: GraphFile) -> Any:
    key = {}
    if file.is_encrypted:
        key = {"dec_key": source.dec_key, "dec_mode": source.dec_mode}
    try:
        cell = mindspore.nn.GraphCell(mindspore.load(path, **key))
    except Exception as error:
        raise load_error(source, path, error) from error
    _declare_dynamic(mindspore, cell, file)
    return cell


def _declare_dynamic(mindspore: Any, cell: Any, file: GraphFile) -> None:
    """Compile once for all shapes; without this every new shape is compiled."""
    specs, bfloat16_inputs = file.signature.inputs, file.bfloat16_inputs
    if all(spec.is_static for spec in specs) or any(spec.shape is None for spec in specs):
        return
    cell.set_inputs(
        *(
            mindspore.Tensor(
                shape=[None if dim < 0 else dim for dim in spec.shape or ()],
                dtype=mindspore.bfloat16
                if index in bfloat16_inputs
                else mindspore.Tensor.from_numpy(np.zeros(1, spec.dtype)).dtype,
            )
            for index, spec in enumerate(specs)
        )
    )


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in _leaves(part)]
    return [result]


def to_array(leaf: Any) -> Array:
    """Convert a tensor or number of a result; bfloat16 becomes float32."""
    array: Array = leaf.asnumpy() if hasattr(leaf, "asnumpy") else np.asarray(leaf)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
