"""Models of clients in the master: permission, names, downloads and the servables made of them.

A download runs in a process of its own (`downloads`). A name is given to the servable that answers
it; copies share one, and a model with other parameters is a servable of its own.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspore_serving.aio import on_thread
from mindspore_serving.core.client_models import ClientModel, NewModel, PullProgress
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import Forbidden, InvalidInputs, NotFound, Overloaded, StartError
from mindspore_serving.hub.reference import Reference
from mindspore_serving.servable.repository import is_language_model
from mindspore_serving.server.client_names import check_name, is_within, short_name, to_reference
from mindspore_serving.server.config import ServableStartConfig, to_deployments
from mindspore_serving.server.downloads import process
from mindspore_serving.server.downloads.job import PullJob
from mindspore_serving.server.downloads.messages import Planned
from mindspore_serving.server.new_models import complete, engine_options
from mindspore_serving.server.repository import NO_ROUTE, ModelRepository

MAX_PULLS = 4  # downloads at a time
MAX_NAMES = 100  # of models that clients have made
IDLE_SECONDS = 300.0  # after which a model without requests is unloaded
_FORBIDDEN = (
    "clients may not download, create, copy and delete models on this server; --allow-pulling "
    "PREFIX, or pull_prefixes of start_restful_server, allows it"
)


class MasterClientModels:
    """The `core.client_models.ClientModelStore` of the master; used on the event loop.

    `prefixes` are beginnings of the names that clients may download, none to forbid all changes.
    """

    def __init__(self, repository: ModelRepository, prefixes: Sequence[str]) -> None:
        self.is_allowed = bool(prefixes)
        self._repository = repository
        self._prefixes = prefixes
        self._models: dict[str, ClientModel] = {}  # by short name
        self._jobs: dict[str, PullJob] = {}  # by the name of a client
        self._new: set[str] = set()  # references that were not there before clients pulled them
        self._lock = asyncio.Lock()  # of `_models` while a servable is loaded or unloaded

    def listed(self) -> Sequence[ClientModel]:
        """Return the models of clients."""
        return list(self._models.values())

    def find(self, name: str) -> ClientModel | None:
        """Return the model that clients call `name`."""
        return self._models.get(short_name(name))

    def pull(self, name: str) -> AsyncIterator[PullProgress]:
        """Download `name` and serve it, see `ClientModelStore`."""
        self._check_allowed()
        reference = to_reference(name)
        if not any(is_within(reference, prefix) for prefix in self._prefixes):
            allowed = ", ".join(self._prefixes)
            raise Forbidden(
                f"{reference} may not be downloaded here: the operator allows {allowed}"
            )
        key = self._check_name(name)
        job = self._jobs.get(key)
        if job is None or job.is_stopped:
            if len(self._jobs) >= MAX_PULLS:
                raise Overloaded(f"{MAX_PULLS} models are being downloaded: try again later")
            self._jobs[key] = job = PullJob(lambda job: self._pull(job, key, reference))
            job.task.add_done_callback(lambda _: self._end(key, job))
        return job.follow()

    def _end(self, key: str, job: PullJob) -> None:
        if self._jobs[key] is job:  # not one that has followed after it was stopped
            del self._jobs[key]

    async def _pull(self, job: PullJob, key: str, reference: Reference) -> None:
        plans: list[Planned] = []
        digest = ""

        def on_planned(plan: Planned) -> None:
            nonlocal digest
            plans.append(plan)
            digest = _digest(plan.name, plan.revision)
            on_received(0)

        def on_received(count: int) -> None:
            total = max(plans[0].size, count)
            status = f"pulling {digest.partition(':')[2][:12]}"
            job.show(PullProgress(status, digest, total, count))

        path = await process.download(str(reference), on_planned, on_received)
        job.is_loading = True
        job.show(PullProgress("loading model"))
        (plan,) = plans
        if plan.is_new:
            self._new.add(plan.name)
        async with self._lock:
            before = self._models.get(key)
            servable = _reused(before) or self._free_servable(reference.title, reference)
            deployment = await on_thread("files", _to_deployment, path, servable)
            await self._repository.add(servable, lambda: [deployment])
            self._models[key] = ClientModel(
                name=key,
                servable=servable,
                source=plan.name,
                digest=digest,
                size=plan.size,
                licence=plan.licence,
                modified=time.time(),
            )

    async def create(self, model: NewModel) -> AsyncIterator[PullProgress]:
        """Make a model of another one, see `ClientModelStore`."""
        self._check_allowed()
        model = complete(model)
        key = self._check_name(model.name)
        options = engine_options(model)
        if self.find(model.source) is None and self._repository.find(model.source) is None:
            async for step in self.pull(model.source):
                yield step
        yield PullProgress("loading model")
        async with self._lock:
            await self._create(key, model.source, options)

    async def _create(self, key: str, source: str, options: dict[str, Any]) -> None:
        base = self.find(source)
        deployment = self._repository.find(base.servable if base else source)
        if deployment is None:
            raise NotFound(f"there is no model '{source}' to make '{key}' of")
        path = Path(deployment.servable_directory, deployment.servable_name)
        if not await on_thread("files", is_language_model, str(path)):
            raise InvalidInputs(
                f"from is '{source}', expected a language model that is served from its files alone"
            )
        before = self._models.get(key)
        is_shared = before is not None and self._is_shared(before)
        servable = ("" if is_shared else _reused(before)) or self._free_servable(key)
        made = replace(
            deployment,
            **_ON_DEMAND,
            **NO_ROUTE,
            alias=servable,
            llm_options={**deployment.llm_options, **options},
            generation=0,
        )
        await self._repository.add(servable, lambda: [made])
        self._models[key] = ClientModel(
            name=key,
            servable=servable,
            source=base.source if base else source,
            digest=_digest(key, repr(sorted(options.items()))),
            size=base.size if base else 0,
            licence=base.licence if base else "",
            modified=time.time(),
            options={**(base.options if base else {}), **options},
        )

    async def copy(self, source: str, target: str) -> None:
        """Give a model one more name, see `ClientModelStore`."""
        self._check_allowed()
        key = self._check_name(target)
        async with self._lock:
            base = self.find(source)
            if base is None and self._repository.find(short_name(source)) is None:
                raise NotFound(f"model '{source:.256}' not found")
            name = short_name(source)
            base = base or ClientModel(name=name, servable=name, source=name)
            await self._drop(key)
            self._models[key] = replace(base, name=key, modified=time.time())

    async def delete(self, name: str) -> None:
        """Delete a model of clients, see `ClientModelStore`."""
        self._check_allowed()
        key = short_name(name)
        async with self._lock:
            if key not in self._models:
                if self._repository.find(key) is not None:
                    raise Forbidden(f"'{key}' is a model of the operator, which clients keep")
                raise NotFound(f"model '{name:.256}' not found")
            await self._drop(key)

    async def _drop(self, key: str) -> None:
        """Remove a name, if there is such a one, and what only it needs."""
        model = self._models.pop(key, None)
        if model is None:
            return
        if not self._is_shared(model) and model.digest:  # else it is a servable of the operator
            await self._repository.remove(model.servable)
        is_needed = any(other.source == model.source for other in self._models.values())
        if model.source in self._new and not is_needed:
            self._new.discard(model.source)
            await process.remove(model.source)

    def _is_shared(self, model: ClientModel) -> bool:
        """Return whether another name means the servable of `model`."""
        rest = (other for other in self._models.values() if other.name != model.name)
        return any(other.servable == model.servable for other in rest)

    def _check_allowed(self) -> None:
        if not self.is_allowed:
            raise Forbidden(_FORBIDDEN)

    def _check_name(self, name: str) -> str:
        """Return the name that clients may give to a model, without the tag that all have.

        Raises InvalidInputs, Forbidden or Overloaded.
        """
        check_name(name)
        key = short_name(name)
        if key in self._models:
            return key
        if self._repository.find(key) is not None:
            raise Forbidden(f"'{key}' is a model of the operator: choose another name")
        if len(self._models) >= MAX_NAMES:
            raise Overloaded(f"there are {MAX_NAMES} models of clients: delete one first")
        return key

    def _free_servable(self, name: str, reference: Reference | None = None) -> str:
        """Return a name of a servable that is made of `name` and not taken."""
        detail = (reference.file or reference.revision) if reference else ""
        text = f"{name}-{detail}" if detail else name.rpartition("/")[2]
        base = re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:100].lstrip(".") or "model"
        number, free = 1, base
        while self._repository.find(free) is not None:
            number += 1
            free = f"{base}-{number}"
        return free


_ON_DEMAND: dict[str, Any] = {
    "max_workers": 1,
    "min_workers": 0,
    "scale_down_delay": IDLE_SECONDS,
    "num_parallel_workers": 0,
}


def _reused(model: ClientModel | None) -> str:
    """Return the servable that a model under the same name replaces; "" if it is the operator's."""
    return model.servable if model is not None and model.digest else ""


def _to_deployment(path: str, servable: str) -> Deployment:
    """Return the deployment of a downloaded model.  Raises StartError for another kind of model."""
    if not is_language_model(path):
        raise StartError(
            "the download is no language model, which is what Ollama's protocol serves; the "
            "operator can serve it by `mindspore-serving serve`"
        )
    location = Path(path)
    config = ServableStartConfig(str(location.parent), location.name, alias=servable, **_ON_DEMAND)
    (deployment,) = to_deployments([config])
    return deployment


def _digest(*parts: str) -> str:
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
