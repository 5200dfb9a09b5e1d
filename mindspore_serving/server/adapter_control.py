"""Who may load and unload LoRA adapters, from where, and under which names."""

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
    """See `core.service.AdapterControl`.  Directories of adapters are below `directories`; None is
    anywhere, and without any nobody may load or unload.
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
        self._check_allowed()
        if not NAME.fullmatch(name):
            raise InvalidField(
                "name", "should be 1 to 128 letters, digits, '_', '.', ':' and '-', no '/'"
            )
        servable = self._find_model(model)
        self._check_free(name, servable)
        found = self._find_directory(path)
        await self._adapters.load(servable, name, found, in_place=in_place)

    async def unload(self, name: str) -> None:
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
                "--allow-lora-loading, or lora_directories of start_restful_server, lets them"
            )

    def _find_model(self, model: str) -> str:
        """The servable that is adapted."""
        models = self._control.language_models()
        names = [servable for servable, _, card in models if card.can_generate]
        if model in names:
            return model
        if model or not names:
            there = ", ".join(names) or "none"
            raise NotFound(f"There is no language model '{model[:128]}'; there is: {there}")
        if len(names) > 1:
            raise InvalidField(
                "model", f"should be one of {', '.join(names)}, as there are several"
            )
        return names[0]

    def _check_free(self, name: str, servable: str) -> None:
        """Raises InvalidField if something else has the name."""
        owners = [row["name"] for row in self._control.describe()]
        for other, _, card in self._control.language_models():
            owners += card.adapters if other != servable else ()
        if name in owners or name in ANY_MODEL:
            raise InvalidField("name", f"should be another than '{name}', which is taken")

    def _find_directory(self, path: str) -> str:
        """The adapter's directory, without links.  Raises InvalidField."""
        roots = self._directories
        if roots is None:
            return os.path.realpath(path)
        if "\0" in path:
            raise InvalidField("path", "should be a directory, and has a character of code 0")
        for root in map(os.path.realpath, roots):
            found = os.path.realpath(os.path.join(root, path))
            files = [os.path.realpath(os.path.join(found, one)) for one in FILES]
            if all(one.startswith(root + os.sep) for one in (found, *files)):
                if os.path.isdir(found):
                    return found
                raise InvalidField("path", f"should be a directory, and '{path[:256]}' is none")
        raise InvalidField(
            "path", "should be below a directory that the operator allows (--allow-lora-loading)"
        )
