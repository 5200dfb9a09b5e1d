"""Models that clients make of others: the request, its Modelfile, and the options that follow."""

from dataclasses import replace
from typing import Any

from mindspore_serving.core.client_models import NewModel
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable.foreign import modelfile
from mindspore_serving.server.client_names import short_name
from mindspore_serving.server.language_options import check_language_options

MAX_SYSTEM = 1 << 16  # characters of a system message


def complete(model: NewModel) -> NewModel:
    """Return the request with what its Modelfile says.

    Raises InvalidInputs for a path of this machine, and for what is not done here.
    """
    if model.modelfile:
        model = _of_modelfile(model)
    source = model.source
    if not source:
        raise InvalidInputs("from is missing: the name of the model to make it of")
    if source.startswith(("/", ".", "~")) or "\\" in source:
        raise InvalidInputs(
            f"from is {source!r:.200}, a path: clients name models, the operator serves files"
        )
    if len(model.system) > MAX_SYSTEM:
        raise InvalidInputs(f"system has {len(model.system)} characters, expected {MAX_SYSTEM}")
    return replace(model, source=short_name(source))


def _of_modelfile(model: NewModel) -> NewModel:
    if len(model.modelfile) > modelfile.MAX_SIZE:
        raise InvalidInputs(f"the Modelfile has over {modelfile.MAX_SIZE} characters")
    parameters: dict[str, Any] = {}
    try:
        for line, name, value in modelfile.instructions(model.modelfile):
            if name == "FROM":
                model = replace(model, source=value)
            elif name == "SYSTEM":
                model = replace(model, system=value)
            elif name == "PARAMETER":
                key, _, text = value.partition(" ")
                parameters[key.lower()] = text.strip()
            elif name in ("TEMPLATE", "ADAPTER", "MESSAGE"):
                raise InvalidInputs(f"Modelfile, line {line}: {name} is not supported here")
    except StartError as error:
        raise InvalidInputs(str(error)) from None
    return replace(model, parameters=parameters)


def engine_options(model: NewModel) -> dict[str, Any]:
    """Return the options of the engine for a new model.  Raises InvalidInputs."""
    options: dict[str, Any] = {}
    try:
        for name, value in model.parameters.items():
            options |= modelfile.parameter_options(name, value)
    except StartError as error:
        raise InvalidInputs(str(error)) from None
    if model.system:
        options["system_message"] = model.system
    check_language_options(options)
    return options
