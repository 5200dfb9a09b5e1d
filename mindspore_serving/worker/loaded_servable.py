"""Servable that is loaded into this process: its declaration, models and prepared methods.

It knows no channel, and not how it is loaded (`worker.loading`).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindspore_serving.backends import run as model_run
from mindspore_serving.backends.base import LoadedModel
from mindspore_serving.core.declaration import Declaration
from mindspore_serving.core.llm_messages import METHODS
from mindspore_serving.core.roles import PREFILL_METHOD
from mindspore_serving.core.tasks import TASKS
from mindspore_serving.core.value import Value
from mindspore_serving.ipc.messages import AgentAddress, MethodReport, ModelReport
from mindspore_serving.worker.job import Outcome, PreparedMethod

if TYPE_CHECKING:
    from mindspore_serving.tasks.opening import OpenTask
    from mindspore_serving.worker.language import LanguageService


@dataclass(slots=True)
class LoadedServable:
    """Loaded servable: declaration, models and prepared methods."""

    declaration: Declaration
    version: int
    device_type: str
    programs: dict[str, PreparedMethod] = field(default_factory=dict)
    models: dict[str, ModelReport] = field(default_factory=dict)
    backends: dict[str, LoadedModel] = field(default_factory=dict)
    threads: ThreadPoolExecutor | None = None  # for a model that runs several batches at once
    num_slots: int = 1  # batches that the model runs at once
    language: "LanguageService | None" = None
    tasks: "dict[str, OpenTask]" = field(default_factory=dict)  # by path
    agents: list[AgentAddress] = field(default_factory=list)  # of a distributed servable
    role: str = ""  # see `core.roles`

    def method_reports(self) -> list[MethodReport]:
        reports = []
        for name, program in self.programs.items():
            method = program.method
            inputs, outputs = list(method.inputs), list(method.outputs)
            size, is_only = program.batch_size * self.num_slots, method.has_only_models
            reports.append(
                MethodReport(
                    name,
                    inputs,
                    outputs,
                    size,
                    method.retry,
                    is_only,
                    method.streams,
                    method.calls,
                    program.signature,
                    method.cache,
                    program.sequences.num_bytes if program.sequences is not None else None,
                    method.needs_sequence,
                )
            )
        if self.language is not None:
            reports += [
                MethodReport(
                    name,
                    [],
                    [],
                    1,
                    retry=name != PREFILL_METHOD,  # else the worker that decodes computes it
                    is_only_models=True,
                    streams=True,
                )
                for name in METHODS
                if self.role or name != PREFILL_METHOD
            ]
        return reports

    def reports(self) -> dict[str, ModelReport]:
        """Return the reports of models of stages by key, and of models of tasks by path."""
        tasks = {
            path: ModelReport(0, [TASKS[spec.task].signature])
            for path, spec in self.declaration.tasks.items()
        }
        return {**self.models, **tasks}

    def run_model(
        self, key: str, subgraph: int, rows: Sequence[tuple[Value, ...]]
    ) -> list[Outcome]:
        spec = self.declaration.models[key]
        return list(model_run.run_model(self.backends[key], spec, subgraph, rows))

    def close(self) -> None:
        if self.threads is not None:
            self.threads.shutdown()
        for backend in self.backends.values():
            backend.close()
        for task in self.tasks.values():
            task.close()
        if self.language is not None:
            self.language.close()


def call_name(key: str, subgraph: int) -> str:
    """Return the name of the method by which other workers call a model of this worker."""
    return f"@call_{key}_{subgraph}"
