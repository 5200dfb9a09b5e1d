"""LoRA adapters that come and go while the server runs."""

from typing import TYPE_CHECKING

from mindspore_serving.servable.check import check_bool, check_str
from mindspore_serving.server import startup

if TYPE_CHECKING:
    from mindspore_serving.server.serving import Serving


def load_lora(name: str, path: str, *, model: str = "", replace: bool = False) -> None:
    """Serve the LoRA adapter in the directory `path` under `name`, by all workers of a model.

    Args:
        name: what clients call it: 1 to 128 letters, digits, `_`, `.`, `:` and `-`.
        path: a directory as PEFT writes it; on each machine that runs workers of the model.
        model: the language model that it is of; "" if there is one.
        replace: it takes the place of one of that name.

    Raises RuntimeError: what does not fit, a name that is taken, more than `max_loras`; then
    nothing has changed.
    """
    check_bool("replace", replace)
    check_str("path", path)

    async def work(serving: "Serving") -> None:
        await serving.adapter_control(None).load(name, path, model, in_place=replace)

    startup.run_on_server(work)


def unload_lora(name: str) -> None:
    """Serve the adapter `name` no more: new requests to it are refused, those that run go on, and
    its memory is given back when the last has ended.  Raises RuntimeError if there is none.
    """

    async def work(serving: "Serving") -> None:
        await serving.adapter_control(None).unload(name)

    startup.run_on_server(work)
