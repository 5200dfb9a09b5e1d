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
    "ms": SourceRow(
        "mindspore_serving.hub.sources.model_scope",
        "ModelScope",
        "requests",
        "ms://ORG/NAME: a repository of ModelScope, or of the hub that MODELSCOPE_ENDPOINT names",
    ),
    "modelers": SourceRow(
        "mindspore_serving.hub.sources.modelers",
        "Modelers",
        "requests",
        "modelers://ORG/NAME: a repository of Modelers (openMind), or of OPENMIND_HUB_ENDPOINT",
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
    "oci": SourceRow(
        "mindspore_serving.hub.sources.oci",
        "Oci",
        "requests",
        "oci://REGISTRY/REPOSITORY[:TAG]: an image with a model in /models (KServe's modelcars)",
        "tagged",
    ),
    "s3": SourceRow(
        "mindspore_serving.hub.sources.buckets",
        "S3",
        "obstore",
        "s3://BUCKET/PATH: an object or a prefix; AWS_ENDPOINT_URL names another server",
        "url",
    ),
    "gs": SourceRow(
        "mindspore_serving.hub.sources.buckets",
        "GoogleStorage",
        "obstore",
        "gs://BUCKET/PATH: the same of Google Cloud Storage",
        "url",
    ),
    "az": SourceRow(
        "mindspore_serving.hub.sources.buckets",
        "Azure",
        "obstore",
        "az://CONTAINER/PATH: the same of Azure Blob Storage",
        "url",
    ),
}
