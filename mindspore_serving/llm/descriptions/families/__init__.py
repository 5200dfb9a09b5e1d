"""Descriptions of generating architectures: first entry of `architectures` -> `Architecture`.

An architecture that differs by names, norms or scales is one more row.
"""

from mindspore_serving.llm.descriptions.architecture import Architecture
from mindspore_serving.llm.descriptions.families import (
    chatglm,
    gemma,
    gpt,
    images,
    llama,
    mamba,
    mixtures,
    pangu,
    states,
    telechat,
)

FAMILIES: dict[str, Architecture] = {
    **llama.ROWS,
    **gemma.ROWS,
    **gpt.ROWS,
    **mixtures.ROWS,
    **states.ROWS,
    **mamba.ROWS,
    **images.ROWS,
    **chatglm.ROWS,
    **telechat.ROWS,
    **pangu.ROWS,
}
