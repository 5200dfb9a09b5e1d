"""Loading and unloading LoRA adapters while the server runs."""

from typing import TYPE_CHECKING

from mindspore_serving.servable.check import check_bool, check_str
from mindspore_serving.server import startup

if TYPE_CHECKING:
    from mindspore_serving.server.serving import Serving


def load_lora(name: str, path: str, *, model: str = "", replace: bool = False) -> None:
    """Load a LoRA adapter into all workers of a language model.

    Args:
        name: the adapter's name for clients: 1 to 128 letters, digits, `_`, `.`, `:` and `-`.
        path: a directory as PEFT writes it; it has to exist on each machine with workers of the
            model.
        model: the language model; "" if only one is served.
        replace: whether to replace an adapter of that name.

    Raises:
        RuntimeError: the adapter does not fit the model, the name is taken, or there would be more
            than `max_loras`; nothing has changed then.
    """
    check_bool("replace", replace)
    check_str("path", path)

    async def work(serving: "Serving") -> None:
        await serving.adapter_control(None).load(name, path, model, in_place=replace)

    startup.run_on_server(work)


def unload_lora(name: str) -> None:
    """Unload a LoRA adapter.

    New requests to it are refused; running ones finish, and its memory is freed after the last.

    Raises:
        RuntimeError: no adapter has this name.
    """

    async def work(serving: "Serving") -> None:
        await serving.adapter_control(None).unload(name)

    startup.run_on_server(work)
