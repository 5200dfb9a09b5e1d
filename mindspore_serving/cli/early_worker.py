"""The worker of a GGUF file, which `serve` starts before it imports the server.

Importing takes half a second, in which the worker imports what it needs and reads the tokenizer.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mindspore_serving import log
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.cluster.worker_process import early
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.catalog import AUTO, COMBINED, OURS
from mindspore_serving.llm.parallel import msrun
from mindspore_serving.log.settings import ACCESS, FORMAT, LEVEL, REQUESTS

SUFFIX = ".gguf"


@contextmanager
def started(settings: ServeSettings) -> Iterator[None]:
    """Hold the worker of a single GGUF file, which is killed at the end if nobody has taken it."""
    set_log(settings)
    if _is_known(settings):
        path = os.path.abspath(settings.paths[0])
        name = os.path.basename(path)
        log_name = f"log_{name}_device0_version0"
        early.start(f"servable {name}, device 0", log_name, ["--model", path])
    try:
        yield
    finally:
        early.end()


def _is_known(settings: ServeSettings) -> bool:
    """Return whether the servable is a GGUF file for our engine in this interpreter."""
    if len(settings.paths) != 1 or settings.servables or msrun.read_role() is not None:
        return False
    has_path = settings.paths[0].endswith(SUFFIX) and os.path.isfile(settings.paths[0])
    is_ours = settings.engine in ("", OURS) and (settings.runtime or AUTO) in (AUTO, COMBINED)
    return has_path and is_ours and not (settings.python or settings.environment)


def set_log(settings: ServeSettings) -> None:
    """Configure the log of this process and of its workers.  Raises InvalidInputs."""
    variables = {
        LEVEL: settings.log_level,
        FORMAT: settings.log_format,
        ACCESS: "1" if settings.access_log else None,
        REQUESTS: "1" if settings.log_requests else None,
    }
    try:
        log.configure({name: value for name, value in variables.items() if value is not None})
    except ValueError as error:
        raise InvalidInputs(str(error)) from None
