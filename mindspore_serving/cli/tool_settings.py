"""Settings of subcommands that need no server, and of `launch`."""

from dataclasses import dataclass

from mindspore_serving.cli.agents import AGENTS
from mindspore_serving.cli.options import option, positional
from mindspore_serving.cli.settings import Access, ServeSettings
from mindspore_serving.cli.urls import SERVER_URL
from mindspore_serving.llm import catalog


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """Settings of `mindspore-serving quantize`."""

    source: str = positional(
        "checkpoint directory, a name as ORG/NAME, or a file .mindir, .onnx, .xml",
        metavar="SOURCE",
    )
    target: str = positional("directory to create; of a file OUT.xml", metavar="TARGET")
    mode: str = option(
        "int8",
        "int8 has a scale per row, int4 one per --group weights",
        choices=("int8", "int4", "float16"),
    )
    group: int = option(128, "int4: number of weights that share a scale", choices=(32, 64, 128))
    zeros: str = option(
        "no",
        "int4: zero points (asymmetric); auto: for each matrix what has less error",
        choices=("no", "yes", "auto"),
    )
    calibrate: str | None = option(
        None,
        "text file: scale weights by the activations that it causes; of a file its data, .npz",
        metavar="FILE",
    )
    tokens: int = option(4096, "number of tokens of that text to use")
    samples: int = option(300, "of a file: number of instances that calibrate")


@dataclass(frozen=True, slots=True)
class ConvertSettings:
    """Settings of `mindspore-serving convert`."""

    source: str = positional("MindIR file that is not encrypted, or Lite file", metavar="FILE")
    target: str = positional("file to write; the weights are written beside it", metavar="OUT.xml")


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Settings of `mindspore-serving pull`."""

    name: str = positional("name of a model, as ORG/NAME", metavar="NAME")


@dataclass(frozen=True, slots=True)
class ListSettings:
    """Settings of `mindspore-serving list`."""

    json: bool = option(False, "print the downloads as JSON, with sizes in bytes")


@dataclass(frozen=True, slots=True)
class RemoveSettings:
    """Settings of `mindspore-serving remove`."""

    name: str = positional("name of a downloaded model, as ORG/NAME", metavar="NAME")
    yes: bool = option(False, "remove it without a question")


@dataclass(frozen=True, slots=True)
class ShowSettings:
    """Settings of `mindspore-serving show`."""

    model: str = positional("file, directory or name of a model", metavar="MODEL")
    runtime: str = option(
        catalog.AUTO,
        "runtime of language models to judge for",
        choices=(catalog.AUTO, *catalog.RUNTIMES),
    )
    json: bool = option(False, "print the card as JSON, with sizes in bytes")


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """Settings of `mindspore-serving doctor`."""

    probe: bool = option(False, "import each library to find its devices; takes seconds")


@dataclass(frozen=True, slots=True)
class AscendCheckSettings:
    """Settings of `mindspore-serving ascend-check`."""

    device: str = option(
        "ascend",
        "cpu: compare the operators that replace the device's, without a device",
        choices=("ascend", "cpu"),
    )
    primitives: str = option(
        "all", "primitives to compare, divided by commas; none leaves them out", metavar="NAMES"
    )
    model: bool = option(
        True, "run a small model as well, compare it with numpy and measure tokens per second"
    )
    devices: int = option(1, "over 1: number of devices whose all-reduce is checked and measured")
    deadline: float = option(120.0, "seconds for each primitive, before it counts as failed")
    json: str | None = option(None, "file to write the report to, as JSON", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class LaunchSettings(Access):
    """Settings of `mindspore-serving launch`."""

    program: str = positional("the agent to start", metavar="PROGRAM", choices=tuple(AGENTS))
    arguments: list[str] = positional(
        "arguments for the agent, after --", metavar="ARGUMENT", nargs="*"
    )
    url: str = option(SERVER_URL, "URL of the server, or HOST:PORT", metavar="URL")
    model: str = option("", "name of the model", default_text="the server's first", metavar="NAME")
    dry_run: bool = option(False, "print the command for a shell, and start nothing")


@dataclass(frozen=True, slots=True)
class DocsSettings:
    """Settings of `mindspore-serving docs`."""

    page: str = positional("name of a page; without it all are listed", metavar="PAGE", nargs="?")


@dataclass(frozen=True, kw_only=True)
class ConfigSettings(ServeSettings):
    """Settings of `mindspore-serving config`."""

    show: bool = option(
        False, "print the configuration of `serve`; this is the default", is_common=True
    )
    schema: bool = option(
        False, "print the JSON schema of configuration files, for editors", is_common=True
    )
