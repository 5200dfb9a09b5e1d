"""`mindspore-serving run-batch`: answer a file of requests without a server."""

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial

from mindspore_serving import server
from mindspore_serving.cli import servables
from mindspore_serving.cli.chat_settings import RunBatchSettings
from mindspore_serving.cli.settings import ServableSettings, ServeSettings
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.state.batch import Batch
from mindspore_serving.server import startup
from mindspore_serving.server.config import to_deployments
from mindspore_serving.server.offline_batch import OfflineJob, remove_state, run_batch

_NUM_SHOWN = 10  # lines of progress where there is no terminal


def run(settings: RunBatchSettings) -> int:
    """Run the requests; return 0, or 1 if some have errors.

    Raises ServingError if a file cannot be read or written, or the model cannot be served.
    """
    job = OfflineJob(settings.requests, settings.results, settings.concurrency)
    if not os.path.isfile(job.source):
        raise InvalidInputs(f"{job.source} is no file, expected lines of requests as JSON")
    values = {each.name: getattr(settings, each.name) for each in fields(ServableSettings)}
    configs, _ = servables.find(ServeSettings(paths=(settings.model,), **values))
    work = partial(run_batch, job=job, on_progress=_progress())
    try:
        startup.load(to_deployments(configs))
        batch = startup.run_on_server(work)
    except KeyboardInterrupt:
        print("Stopped; the same command goes on with the rest.", file=sys.stderr, flush=True)
        raise
    finally:
        server.stop()
    remove_state(job)
    counts = batch.counts
    print(f"{counts.completed} of {counts.total} requests are answered in {job.target}", flush=True)
    return 1 if counts.failed else 0


def _progress() -> Callable[[Batch], None]:
    """Return a function that shows how many requests have ended: a bar, or lines."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(unit=" requests")

        def update(batch: Batch) -> None:
            bar.total = batch.counts.total
            bar.update(batch.counts.num_ended - bar.n)
            if not batch.is_active:
                bar.close()

        return update
    shown = -1

    def report(batch: Batch) -> None:
        nonlocal shown
        counts = batch.counts
        share = counts.num_ended * _NUM_SHOWN // counts.total if counts.total else 0
        if share != shown and batch.status == "in_progress":
            shown = share
            print(f"{counts.num_ended} of {counts.total} requests", file=sys.stderr, flush=True)

    return report
