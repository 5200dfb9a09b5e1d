"""Rules for loading and unloading LoRA adapters: permission, directories and names."""

import os
import re
from collections.abc import Sequence

from mindspore_serving.core.service import Control
from mindspore_serving.errors import Forbidden, InvalidField, NotFound
from mindspore_serving.frontends.chat.models import ANY_MODEL
from mindspore_serving.master.adapters import ServedAdapters

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
FILES = ("adapter_config.json", "adapter_model.safetensors")


class MasterAdapterControl:
    """The `core.service.AdapterControl` of the master.

    Directories of adapters have to be below one of `directories`.  None allows any directory, and
    an empty list forbids loading and unloading.
    """

    def __init__(
        self, adapters: ServedAdapters, control: Control, directories: Sequence[str] | None
    ) -> None:
        self._adapters = adapters
        self._control = control
        self._directories = directories

    async def load(
        self, name: str, path: str, model: str = "", *, in_place: bool = False
    ) -> None:  # fmt: skip
        """Load the adapter in the directory `path` for `model`, as `name`.

        Raises Forbidden, NotFound or InvalidField.
        """
        self._check_allowed()
        if not NAME.fullmatch(name):
            raise InvalidField(
                "name", "should be 1 to 128 letters, digits, '_', '.', ':' and '-', no '/'"
            )
        servable = self._find_model(model)
        self._check_free(name, servable)
        directory = self._find_directory(path)
        await self._adapters.load(servable, name, directory, in_place=in_place)

    async def unload(self, name: str) -> None:
        """Unload the adapter `name`.  Raises Forbidden or NotFound."""
        self._check_allowed()
        for servable, _, card in self._control.language_models():
            if name in card.adapters:
                await self._adapters.unload(servable, name)
                return
        raise NotFound(f"The adapter '{name[:128]}' is not loaded")

    def _check_allowed(self) -> None:
        if self._directories is not None and not self._directories:
            raise Forbidden(
                "clients may not load and unload LoRA adapters on this server; "
                "--allow-lora-loading, or lora_directories of start_restful_server, allows it"
            )

    def _find_model(self, model: str) -> str:
        """Return the servable of `model`, or the only one if it is "".

        Raises NotFound or InvalidField.
        """
        models = self._control.language_models()
        names = [servable for servable, _, card in models if card.can_generate]
        if model in names:
            return model
        if model or not names:
            served = ", ".join(names) or "none"
            raise NotFound(f"There is no language model '{model[:128]}'; there is: {served}")
        if len(names) > 1:
            raise InvalidField(
                "model", f"should be one of {', '.join(names)}, as there are several"
            )
        return names[0]

    def _check_free(self, name: str, servable: str) -> None:
        """Check that no servable, alias or adapter has the name.  Raises InvalidField."""
        owners = [row["name"] for row in self._control.describe()]
        for other, _, card in self._control.language_models():
            owners += card.adapters if other != servable else ()
        if name in owners or name in ANY_MODEL:
            raise InvalidField("name", f"should be another than '{name}', which is taken")

    def _find_directory(self, path: str) -> str:
        """Return the adapter's directory with links resolved.

        Raises InvalidField if it, or a file in it, lies outside of the allowed directories.
        """
        roots = self._directories
        if roots is None:
            return os.path.realpath(path)
        if "\0" in path:
            raise InvalidField("path", "should be a directory, and has a character of code 0")
        for root in map(os.path.realpath, roots):
            directory = os.path.realpath(os.path.join(root, path))
            files = [os.path.realpath(os.path.join(directory, name)) for name in FILES]
            if all(file.startswith(root + os.sep) for file in (directory, *files)):
                if os.path.isdir(directory):
                    return directory
                raise InvalidField("path", f"should be a directory, and '{path[:256]}' is none")
        raise InvalidField(
            "path", "should be below a directory that the operator allows (--allow-lora-loading)"
        )
