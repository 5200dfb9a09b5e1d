"""The table of architectures in docs/architectures.md, of what tests compare with transformers.

`python -m tests.llm.architecture_table` writes it anew.
"""

from pathlib import Path

from mindspore_serving.llm.checkpoint.gguf.families import FAMILIES as LLAMA_CPP
from mindspore_serving.llm.descriptions.families import FAMILIES
from tests.llm import architectures, checkpoints, seeing
from tests.llm.models.test_gguf_architectures import CASES as CONVERTED
from tests.llm.models.test_gguf_models import CASES as FILES
from tests.llm.models.test_models_openvino import NAMES as OPENVINO
from tests.llm.parallel import test_image_ranks as image_ranks
from tests.llm.parallel.test_tokens import CUT, CUT_ALIKE
from tests.llm.runtimes.test_mindspore_architectures import NAMES as MINDSPORE

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"
GGUF = "gguf"  # a format, which text parts of others have not
MARK = "<!-- architectures -->\n"
OTHERS = {
    "internlm": "InternLMForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "internlm3-biased": "InternLM3ForCausalLM",
    "baichuan2-7b": "BaichuanForCausalLM",
    "baichuan2-13b": "BaichuanForCausalLM",
    "chatglm2-32k": "ChatGLMForConditionalGeneration",
    "chatglm3-32k": "ChatGLMModel",
    "telechat2": "TeleChat2ForCausalLM",
    "pangu-embedded": "PanguEmbeddedForCausalLM",
    "pangu-ultra": "PanguUltraMoEForCausalLM",
}
# The text parts of models with images: test_layouts compares descriptions and names of tensors.
TEXT_PARTS = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3nForConditionalGeneration": "Gemma3nForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Mistral3ForConditionalGeneration": "Ministral3ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
# Other names of the same row of the descriptions.
SAME = {
    f"{name}ForCausalLM": "TeleChat2ForCausalLM" for name in ("Telechat2", "TeleChat", "Telechat")
} | {"MiMoForCausalLM": "Qwen2ForCausalLM"}
COMPARED = {
    "openvino": {*OPENVINO, *architectures.ALL, *seeing.KINDS},
    "torch": {*checkpoints.ALL, *architectures.ALL, *seeing.KINDS},
    "mindspore": {*checkpoints.ALL, *MINDSPORE},
    "tensor_parallel": {*CUT, *CUT_ALIKE, *image_ranks.CUT, *image_ranks.CUT_ALIKE},
    GGUF: {*CONVERTED, *(LLAMA_CPP[family].name for family, _, _ in FILES.values())},
}


def class_of(name: str) -> str:
    """What config.json of a tiny checkpoint calls its architecture; itself if it is one."""
    if name in seeing.KINDS:
        return f"{seeing.KINDS[name][0]}ForConditionalGeneration"
    if name in FAMILIES:
        return name
    return OTHERS.get(name) or checkpoints.architecture(name)


def table() -> str:
    compared = {column: {class_of(name) for name in names} for column, names in COMPARED.items()}
    lines = ["| `architectures` | " + " | ".join(f"`{column}`" for column in compared) + " |"]
    lines.append("|---" * (len(compared) + 1) + "|")
    for name in sorted(FAMILIES, key=str.lower):
        own = {name, TEXT_PARTS.get(name, name), SAME.get(name, name)}
        cells = [
            "yes" if ({name} if column == GGUF else own) & found else ""
            for column, found in compared.items()
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The table as it stands in the document."""
    return DOCUMENT.read_text().split(MARK)[1]


if __name__ == "__main__":
    before, _, after = DOCUMENT.read_text().split(MARK)
    DOCUMENT.write_text(before + MARK + table() + MARK + after)
