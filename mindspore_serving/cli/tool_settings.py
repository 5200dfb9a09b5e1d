"""The settings of subcommands that need no server."""

from dataclasses import dataclass

from mindspore_serving.cli.options import option, positional


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """`mindspore-serving quantize`."""

    source: str = positional("directory with config.json and *.safetensors", metavar="SOURCE")
    target: str = positional("directory to make", metavar="TARGET")
    mode: str = option(
        "int8",
        "int8 has a scale per row, int4 one per 128 weights",
        choices=("int8", "int4", "float16"),
    )


@dataclass(frozen=True, slots=True)
class ConvertSettings:
    """`mindspore-serving convert`."""

    source: str = positional("a MindIR file that is not encrypted", metavar="FILE.mindir")
    target: str = positional("the file to make; weights go beside it", metavar="OUT.xml")


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """`mindspore-serving doctor`."""

    probe: bool = option(False, "import each library to find its devices (takes seconds)")
