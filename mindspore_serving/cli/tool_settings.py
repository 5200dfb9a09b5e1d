"""The settings of subcommands that need no server."""

from dataclasses import dataclass

from mindspore_serving.cli.options import option, positional
from mindspore_serving.cli.settings import ServeSettings


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """`mindspore-serving quantize`."""

    source: str = positional("directory with config.json and *.safetensors", metavar="SOURCE")
    target: str = positional("directory to make", metavar="TARGET")
    mode: str = option(
        "int8",
        "int8 has a scale per row, int4 one per --group weights",
        choices=("int8", "int4", "float16"),
    )
    group: int = option(128, "weights of int4 that share a scale", choices=(32, 64, 128))
    zeros: str = option(
        "no",
        "int4 with a zero for each scale (asymmetric); auto: by matrix, what has less error",
        choices=("no", "yes", "auto"),
    )
    calibrate: str | None = option(
        None, "a text to scale weights by, by what they are multiplied with", metavar="FILE"
    )
    tokens: int = option(4096, "of the text that are used")


@dataclass(frozen=True, slots=True)
class ConvertSettings:
    """`mindspore-serving convert`."""

    source: str = positional("a MindIR file that is not encrypted", metavar="FILE.mindir")
    target: str = positional("the file to make; weights go beside it", metavar="OUT.xml")


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """`mindspore-serving doctor`."""

    probe: bool = option(False, "import each library to find its devices (takes seconds)")


@dataclass(frozen=True, kw_only=True)
class ConfigSettings(ServeSettings):
    """`mindspore-serving config`."""

    show: bool = option(False, "print the configuration that `serve` would have (the default)")
    schema: bool = option(False, "print the JSON schema of configuration files, for editors")
