"""Table of the sources: a row for each scheme, imported when it is used."""

from dataclasses import dataclass
from typing import Literal

# How a name is written behind its scheme.
#   repository: ORG/NAME[@REVISION][:FILE]; url: as it is; tagged: NAME[:TAG][@DIGEST]
Form = Literal["repository", "url", "tagged"]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Module and class of a source, the package of the extra `hub` that it needs, and its use."""

    module: str
    class_name: str
    package: str
    meaning: str
    form: Form = "repository"


SOURCES: dict[str, SourceRow] = {
    "hf": SourceRow(
        "mindspore_serving.hub.sources.hugging_face",
        "HuggingFace",
        "huggingface_hub",
        "hf://ORG/NAME: a repository of Hugging Face, or of the hub that HF_ENDPOINT names",
    ),
    "https": SourceRow(
        "mindspore_serving.hub.sources.web",
        "Web",
        "requests",
        "https://HOST/PATH[#sha256=HEX]: a model file or an archive",
        "url",
    ),
    "http": SourceRow(
        "mindspore_serving.hub.sources.web",
        "PlainWeb",
        "requests",
        "http://HOST/PATH[#sha256=HEX]: the same without encryption",
        "url",
    ),
    "ollama": SourceRow(
        "mindspore_serving.hub.sources.ollama",
        "Ollama",
        "requests",
        "ollama://[NAMESPACE/]NAME[:TAG]: a model of Ollama's registry, kept in Ollama's store",
        "tagged",
    ),
}
