"""Triton's config.pbtxt: the description of a model in a model repository.

Fields are read by Triton's schema, so a misspelt one is an error.  `_READ` has the fields with an
effect; all others are refused if they would change answers, and named otherwise.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from mindspore_serving.core.sequences import ControlInput
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.proto import triton_model_pb2 as pb
from mindspore_serving.servable.foreign import triton_sequences
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.reading import read_text
from mindspore_serving.servable.foreign.triton_tensors import to_samples, to_spec, with_labels

FILE = "config.pbtxt"
MAX_SIZE = 1 << 20  # bytes
_BACKENDS: dict[str, tuple[str, ...]] = {  # backend or platform -> formats that it runs
    "onnxruntime": ("onnx",),
    "onnxruntime_onnx": ("onnx",),
    "pytorch": ("pytorch",),
    "pytorch_libtorch": ("pytorch",),
    "openvino": ("openvino", "onnx"),
    "tensorflow": ("openvino",),
    "tensorflow_savedmodel": ("openvino",),
    "tensorflow_graphdef": ("openvino",),
}
_PYTHON = (
    "model.py is not run: move its code into functions of a servable_config.py, which are stages "
    "of a method"
)
_ENSEMBLE = (
    "write the pipeline as a method of a servable_config.py, with a stage for each model "
    "(`mindspore-serving docs from_triton` shows one)"
)
_LANGUAGE = "serve the checkpoint that it names: mindspore-serving serve DIRECTORY"
_REFUSED_BACKENDS = {
    "ensemble": _ENSEMBLE,
    "python": _PYTHON,
    "vllm": _LANGUAGE,
    "tensorrtllm": _LANGUAGE,
    "tensorrt": "serve the ONNX file that the TensorRT plan was made of",
    "tensorrt_plan": "serve the ONNX file that the TensorRT plan was made of",
    "fil": "serve the model's file alone, as XGBoost (.ubj, .json) or LightGBM (.txt) writes it",
    "dali": "write the preprocessing as a function in a servable_config.py",
}
_READ = {
    "name",
    "platform",
    "backend",
    "runtime",
    "version_policy",
    "max_batch_size",
    "default_model_filename",
    *(f"input.{name}" for name in ("name", "data_type", "dims")),
    *(f"output.{name}" for name in ("name", "data_type", "dims", "label_filename")),
    *(f"instance_group.{name}" for name in ("name", "kind", "count", "gpus")),
    "instance_group.rate_limiter.resources",
    "dynamic_batching.preferred_batch_size",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.preserve_ordering",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.default_queue_policy.timeout_action",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "dynamic_batching.priority_levels",
    "dynamic_batching.default_priority_level",
    "dynamic_batching.priority_queue_policy",
    "parameters",
    "model_warmup",
    "sequence_batching.max_sequence_idle_microseconds",
    "sequence_batching.oldest.max_candidate_sequences",
    "sequence_batching.control_input",
    *(f"sequence_batching.state.{name}" for name in ("input_name", "output_name")),
    *(f"sequence_batching.state.{name}" for name in ("data_type", "dims")),
    *(f"sequence_batching.state.initial_state.{name}" for name in ("name", "data_type", "dims")),
    "sequence_batching.state.initial_state.zero_data",
    "response_cache.enable",
}
_REFUSED = {
    "sequence_batching.oldest.preserve_ordering": (
        "answers of a sequence keep their order, and do not wait for those of others"
    ),
    "sequence_batching.iterative_sequence": "a request of a sequence runs once",
    "sequence_batching.state.initial_state.data_file": (
        "states of a file begin with zeros: use register.declare_state of a servable_config.py"
    ),
    "sequence_batching.state.use_growable_memory": "a state keeps its shape",
    "ensemble_scheduling": _ENSEMBLE,
    "batch_input": "the server adds no inputs about the batch: make the model compute them",
    "batch_output": "the server splits outputs by their first dimension only",
    "input.reshape": "tensors reach the model with the shape of 'dims': export it with that shape",
    "output.reshape": "tensors have the shape that the model returns: export it with that shape",
    "input.allow_ragged_batch": "instances of a batch have equal shapes: pad them in the client",
    "model_operations": "libraries of other operators are not loaded: export standard operators",
    "model_transaction_policy.decoupled": (
        "a model file answers once: yield answers from a function of a servable_config.py"
    ),
}
_MAX_LEVELS = 64
_CACHE_MB = 64  # of a model with response_cache: config.pbtxt has no size
_THREADS = "intra_op_thread_count"
_PARALLEL = "execution_mode"


def read(path: str) -> ForeignModel:
    """Return the model that the config.pbtxt at `path` describes.

    Raises StartError for a file that cannot be read, and for what is not done here.
    """
    directory, config = os.path.dirname(path), parse(path)
    _check_name(config, directory)
    backend = _backend_of(config)
    unread = [*_unread(config)]
    for path in unread:
        if path in _REFUSED:
            raise StartError(f"{FILE}: {path} is not supported: {_REFUSED[path]}")
    options, notes = _workers(config)
    options |= _batching(config) | triton_sequences.to_options(config)
    controls = triton_sequences.to_controls(config)
    if config.response_cache.enable:
        options["cache_mb"] = _CACHE_MB
    model_options, unused = _parameters(config)
    is_batched = config.max_batch_size > 0
    if is_batched or config.input:
        options["with_batch_dim"] = is_batched
    if backend == "openvino":
        options["backend"] = "openvino"
    return ForeignModel(
        "Triton",
        FILE,
        options,
        versions=_versions(config),
        without_effect=(*unread, *notes, *unused),
        model_file=_file_name(config),
        formats=_BACKENDS.get(backend, ()),
        max_batch_size=max(config.max_batch_size, 0),
        inputs=_specs(config.input, config, "input_name", controls, directory=directory),
        outputs=_specs(config.output, config, "output_name", directory=directory),
        model_options=model_options,
        controls=controls,
        warm_up=to_samples(config.model_warmup, directory, is_batched=is_batched),
    )


def parse(path: str) -> Any:
    """Return the ModelConfig in the file at `path`.  Raises StartError."""
    try:
        return text_format.Parse(read_text(path, MAX_SIZE), pb.ModelConfig())
    except text_format.ParseError as error:  # it begins with line and column
        raise StartError(f"{FILE}:{_plain(str(error))}") from None


def _plain(text: str) -> str:
    """Return an error of the parser without the names of our schema."""
    text = text.replace('Message type "triton_model.', 'The message "')
    return text.replace('Enum type "triton_model.', 'The type "')


def _check_name(config: Any, directory: str) -> None:
    name = os.path.basename(directory)
    if config.name not in ("", name):
        raise StartError(
            f"{FILE}: name is {config.name!r:.100}, expected {name!r}, the name of its directory"
        )


def _backend_of(config: Any) -> str:
    """Return the backend, or else the platform, which imply the format; "" if neither is set."""
    backend = str(config.backend or config.platform)
    if config.platform == "ensemble":
        backend = "ensemble"
    if backend and backend not in _BACKENDS:
        reason = _REFUSED_BACKENDS.get(backend, f"known are {', '.join(_BACKENDS)}")
        field = "backend" if config.backend else "platform"
        raise StartError(f"{FILE}: {field} {backend!r:.100} is not run here: {reason}")
    return backend


def _unread(message: Message, prefix: str = "") -> Iterator[str]:
    """Iterate over the fields that are set and not read, once each; parents replace children."""
    seen = set()
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if path in _READ:
            continue
        if not any(known.startswith(f"{path}.") for known in (*_READ, *_REFUSED)):
            yield path
            continue
        for part in value if _is_list(value) else [value]:
            paths = [*_unread(part, f"{path}.")] if isinstance(part, Message) else [path]
            yield from (name for name in paths if name not in seen)
            seen.update(paths)


def _is_list(value: object) -> bool:
    return not isinstance(value, Message | str | bytes) and isinstance(value, Iterable)


def _file_name(config: Any) -> str:
    """Return the default name of the model's file; "" if there is none."""
    name = str(config.default_model_filename)
    if name and (name in (".", "..") or "/" in name or "\0" in name):
        raise StartError(
            f"{FILE}: default_model_filename is {name!r:.100}, expected the name of a file in the "
            "version directory"
        )
    return name


def _versions(config: Any) -> str:
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return "all"
    if choice == "specific":
        numbers = [int(number) for number in policy.specific.versions]
        if not numbers or min(numbers) < 1:
            raise StartError(f"{FILE}: version_policy.specific has {numbers}, expected numbers > 0")
        return ",".join(map(str, numbers))
    if choice == "latest":
        return f"latest:{policy.latest.num_versions or 1}"
    return ""


def _workers(config: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the options for instance_group, and what of it has no effect."""
    groups = [group for group in config.instance_group if not group.passive]
    if not groups:
        return {}, []
    kind, *further_kinds = {group.kind for group in groups}
    if further_kinds:
        raise StartError(
            f"{FILE}: instance_group has groups of several kinds, expected one kind: a servable "
            "runs on CPUs or on GPUs"
        )
    count = sum(max(group.count, 1) for group in groups)
    limits = [limit for group in groups for limit in group.rate_limiter.resources]
    shared = {str(limit.name): max(int(limit.count), 1) for limit in limits}
    options: dict[str, Any] = {"resources": shared} if shared else {}
    if kind != pb.ModelInstanceGroup.KIND_GPU:
        has_gpus = any(group.gpus for group in groups)
        options["num_parallel_workers"] = count
        if kind == pb.ModelInstanceGroup.KIND_CPU:
            options["device_type"] = "CPU"
        return options, ["instance_group.gpus of another kind than KIND_GPU"] * has_gpus
    devices = sorted({int(gpu) for group in groups for gpu in group.gpus})
    notes = []
    if any(group.count > 1 for group in groups):
        notes.append("instance_group.count on GPUs: a GPU has one worker")
    if len(devices) > 1 and any(not getattr(limit, "global") for limit in limits):
        notes.append("instance_group.rate_limiter.resources of each GPU: they are global")
    if not devices:
        notes.append("instance_group without gpus: device 0 is used; --device-ids chooses")
    return {**options, "device_type": "GPU", "device_ids": tuple(devices) or (0,)}, notes


def _batching(config: Any) -> dict[str, Any]:
    if not config.HasField("dynamic_batching"):
        return {}
    batching = config.dynamic_batching
    policy = batching.default_queue_policy
    options = _levels(batching)
    if batching.max_queue_delay_microseconds:
        options["max_batch_delay_ms"] = batching.max_queue_delay_microseconds / 1000
        options["preferred_batch_size"] = max(batching.preferred_batch_size, default=0)
    if policy.default_timeout_microseconds and not options.get("priority_levels"):
        _check_action(policy)
        options["max_queue_seconds"] = policy.default_timeout_microseconds / 1e6
    return options


def _levels(batching: Any) -> dict[str, Any]:
    """Return the options for levels of priority, of which a limited queue without levels is one."""
    count, default = batching.priority_levels, batching.default_priority_level
    if not count and not batching.default_queue_policy.max_queue_size:
        return {}
    count = count or 1
    if count > _MAX_LEVELS or default > count:
        raise StartError(
            f"{FILE}: priority_levels is {count} and default_priority_level {default}, expected at "
            f"most {_MAX_LEVELS} levels, and one of them"
        )
    times, sizes = {}, {}
    for level in range(1, count + 1):
        policy = batching.default_queue_policy
        if level in batching.priority_queue_policy:
            policy = batching.priority_queue_policy[level]
        if policy.default_timeout_microseconds:
            _check_action(policy)
            times[str(level)] = max(1, policy.default_timeout_microseconds // 1000)
        if policy.max_queue_size:
            sizes[str(level)] = policy.max_queue_size
    options = {"priority_levels": count, "default_priority": default}
    return {**options, "level_queue_ms": times, "level_queue_sizes": sizes}


def _check_action(policy: Any) -> None:
    if policy.timeout_action != pb.ModelQueuePolicy.REJECT:
        raise StartError(
            f"{FILE}: timeout_action DELAY is not supported: requests that have waited too "
            "long are refused, as by REJECT"
        )


def _specs(
    tensors: Iterable[Any],
    config: Any,
    state_name: str,
    controls: Iterable[ControlInput] = (),
    *,
    directory: str,
) -> tuple[TensorSpec, ...]:
    """Return the specs of tensors, if there are any, with those of states and control inputs."""
    is_batched = config.max_batch_size > 0
    specs = [
        with_labels(
            to_spec(tensor, is_batched=is_batched), getattr(tensor, "label_filename", ""), directory
        )
        for tensor in tensors
    ]
    for state in config.sequence_batching.state if specs else ():
        spec = to_spec(state, is_batched=is_batched, name=getattr(state, state_name))
        specs.append(spec)
    added = triton_sequences.to_specs(controls) if specs else ()
    return (*specs, *added)


def _parameters(config: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the model's library, and parameters without effect."""
    values = {name: row.string_value for name, row in sorted(config.parameters.items())}
    options: dict[str, Any] = {}
    threads = values.pop(_THREADS, "")
    if threads:
        if not threads.isascii() or not threads.isdigit() or len(threads) > 4:
            raise StartError(
                f"{FILE}: parameter {_THREADS} is {threads!r:.100}, expected a number up to 9999"
            )
        if int(threads):  # 0 is the library's default
            options["thread_num"] = int(threads)
    if values.get(_PARALLEL) in ("0", "1") and values.pop(_PARALLEL) == "1":
        options["enable_parallel"] = True
    return options, [f"parameters.{name}" for name in values]
