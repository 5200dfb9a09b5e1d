"""Settings that `tune` tries: one row of a table for each knob.  Pure.

A row knows which values make sense for a servable and the settings chosen so far; it does not know
whether they are faster.  A value is a set of changes by the names of a configuration file, with
`llm_option.NAME` for those of `--llm-option`; None is the default.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mindspore_serving.llm.catalog import OPENVINO
from mindspore_serving.servable.backend_choice import CHOICES

Changes: TypeAlias = Mapping[str, Any]

LANGUAGE_PREFIX = "llm_option."
_MAX_SEQS = 64  # default of max_num_seqs
_NATIVE, _TORCH = "native", "torch"


@dataclass(frozen=True, slots=True)
class Subject:
    """Servable to tune, and what may be tried.

    `format` is that of a model file without servable_config.py, "gguf" or "directory" of a
    language model, "" of others.  `libraries` are runtimes that are installed, `cores` the numbers
    of the processor's cores, `clients` the largest load, `base` the options that the user has set.
    `int8` and `draft` are paths.
    """

    format: str
    is_language: bool
    cores: Sequence[int]
    clients: int
    libraries: frozenset[str] = frozenset()
    base: Changes = field(default_factory=dict)
    allows_rounding: bool = False
    int8: str = ""
    draft: str = ""


@dataclass(frozen=True, slots=True)
class Knob:
    """Row of the table: the options that it changes, and the values to try.

    A knob that `rounds` changes the numbers in answers.
    """

    name: str
    options: tuple[str, ...]
    values: Callable[[Subject, Changes], Iterable[Changes]]
    is_language: bool = False
    rounds: bool = False


def _each(option: str, *values: Any) -> Callable[[Subject, Changes], Iterable[Changes]]:
    return lambda subject, chosen: [{option: value} for value in values]


def _backends(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    """Try the libraries that are installed but for the first, which is the default."""
    names = _libraries(subject) if "path" not in chosen else ()
    return [{"backend": name} for name in names if name in subject.libraries][1:]


def _precisions(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    first = next((name for name in _libraries(subject) if name in subject.libraries), OPENVINO)
    is_openvino = subject.format == OPENVINO or chosen.get("backend", first) == OPENVINO
    is_file = subject.format in (*CHOICES, OPENVINO) and "path" not in chosen
    return [{"precision": "bfloat16"}] * (is_file and is_openvino)


def _libraries(subject: Subject) -> Sequence[str]:
    return CHOICES.get(subject.format, ("", ()))[1]


def _int8(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    return [{"path": subject.int8, "backend": None, "precision": None}] * bool(subject.int8)


def _workers(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    """Try powers of two up to the number of cores, and that number."""
    count = len(subject.cores)
    sizes = sorted({count, *(1 << n for n in range(1, count.bit_length()))} - {1})
    return [{"num_parallel_workers": n, "cores": None} for n in sizes if n <= count]


def _cores(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    """Give each worker its share of the cores, a single worker half of them."""
    count = chosen.get("num_parallel_workers", 1)
    parts = count if count > 1 else 2
    size = len(subject.cores) // parts
    if not size:
        return []
    sets = [
        ",".join(map(str, subject.cores[n * size : (n + 1) * size]))
        for n in range(count if count > 1 else 1)
    ]
    return [{"cores": ";".join(sets)}]


def _model_threads(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    """Try half of the cores, and a core's share of each worker; all are the default of runtimes."""
    count = len(subject.cores)
    sizes = {1, count // 2, count // chosen.get("num_parallel_workers", 1)} - {0, count}
    return [{"model_threads": n} for n in sorted(sizes)] * bool(subject.format)


def _preferred(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    sizes = (2, 4, 8, 16) if chosen.get("max_batch_delay_ms") else ()
    return [{"preferred_batch_size": n} for n in sizes if n <= subject.clients]


def _runtimes(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    """Try runtimes beside the default: `combined` of a quantised GGUF file, else `openvino`."""
    names = (_NATIVE, OPENVINO) if subject.format == "gguf" else (_TORCH,)
    return [{"runtime": name} for name in names]


def _quantizations(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    is_possible = subject.format != "gguf" and chosen.get("runtime", OPENVINO) == OPENVINO
    return [{"quantization": name} for name in ("int8", "int4")] * is_possible


def _drafts(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    return [{"draft": subject.draft}] * bool(subject.draft)


def _sequences(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    sizes = (2, 4, 8, 16, 32, 128, 256)
    clients = subject.clients
    fitting = [n for n in sizes if n < clients or _MAX_SEQS < n < 2 * clients]
    return [{"llm_option.max_num_seqs": n} for n in fitting if n <= _step_tokens(chosen)]


def _steps(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    least = chosen.get("llm_option.max_num_seqs", _MAX_SEQS)
    sizes = (128, 256, 1024, 2048)
    return [{"llm_option.max_num_batched_tokens": n} for n in sizes if n >= least]


def _step_tokens(chosen: Changes) -> int:
    return int(chosen.get("llm_option.max_num_batched_tokens", 512))


def _language(
    option: str,
    values: Callable[[Subject, Changes], Iterable[Changes]],
    name: str = "",
    *,
    rounds: bool = False,
) -> Knob:
    name = name or option.removeprefix(LANGUAGE_PREFIX)
    return Knob(name, (option,), values, is_language=True, rounds=rounds)


def _threads(subject: Subject, chosen: Changes) -> Iterable[Changes]:
    count = len(subject.cores)
    return [{"llm_option.num_threads": n} for n in sorted({count // 2, count}) if n]


_TOKENS, _DTYPE = "llm_option.num_speculative_tokens", "llm_option.dtype"
_CACHE, _SEQS = "llm_option.kv_cache_dtype", "llm_option.max_num_seqs"

# Settings on which other knobs depend.
_DEPENDED_ON: Sequence[Changes] = ({"max_batch_delay_ms": 1}, {"backend": OPENVINO})

KNOBS = (
    Knob("backend", ("backend",), _backends),
    Knob("precision", ("precision",), _precisions, rounds=True),
    Knob("int8", ("path",), _int8, rounds=True),
    Knob("workers", ("num_parallel_workers", "max_workers", "device_ids"), _workers),
    Knob("cores", ("cores",), _cores),
    Knob("threads", ("model_threads",), _model_threads),
    Knob("delay", ("max_batch_delay_ms",), _each("max_batch_delay_ms", 1, 2, 5)),
    Knob("batch", ("preferred_batch_size",), _preferred),
    _language("runtime", _runtimes),
    _language("quantization", _quantizations, rounds=True),
    _language("draft", _drafts),
    _language(_TOKENS, _each(_TOKENS, 0, 4), "speculation"),
    _language("llm_option.max_num_batched_tokens", _steps, "step"),
    _language(_SEQS, _sequences, "sequences"),
    _language("llm_option.num_threads", _threads, "threads"),
    _language(_DTYPE, _each(_DTYPE, "f32", "bf16"), rounds=True),
    _language(_CACHE, _each(_CACHE, "u8"), rounds=True),
)
NAMES = tuple(dict.fromkeys(knob.name for knob in KNOBS))


def chosen(subject: Subject, fixed: Iterable[str], names: Sequence[str] = ()) -> list[Knob]:
    """Return the knobs of a servable: those of `names`, or all; none that changes `fixed` options.

    Knobs that round are left out unless the subject allows it; int8 has its data given.  So are
    those without a value to try.
    """
    options = set(fixed)
    return [
        knob
        for knob in KNOBS
        if knob.is_language == subject.is_language
        and (not knob.rounds or subject.allows_rounding or knob.name == "int8")
        and (not names or knob.name in names)
        and not options.intersection(knob.options)
        and any([*knob.values(subject, {**each, **subject.base})] for each in _DEPENDED_ON)
    ]


def merged(settings: Changes, changes: Changes) -> dict[str, Any]:
    """Return `settings` with the changes; those that are None are defaults, and left out."""
    together = {**settings, **changes}
    return {name: value for name, value in sorted(together.items()) if value is not None}


def entry(
    base: Changes, changes: Changes, is_per_servable: Callable[[str], bool]
) -> dict[str, Any]:
    """Return the content of a configuration file with one servable, of `base` and the changes."""
    servable = dict(base)
    options = dict(servable.get("llm_option", {}))
    server: dict[str, Any] = {}
    for name, value in changes.items():
        if name.startswith(LANGUAGE_PREFIX):
            options[name.removeprefix(LANGUAGE_PREFIX)] = value
        elif name == "path" or is_per_servable(name):
            servable[name] = value
        else:
            server[name] = value
    if options:
        servable["llm_option"] = options
    return {"servables": [servable], **server}


def describe(changes: Changes) -> str:
    """Return the changes in a line, "defaults" if there are none."""
    return (
        ", ".join(
            f"{name.removeprefix(LANGUAGE_PREFIX)} {value}" for name, value in changes.items()
        )
        or "defaults"
    )
