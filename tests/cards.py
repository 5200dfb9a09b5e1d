"""What a model says of itself, where it does not matter."""

from mindspore_serving.core.model_card import ModelCard

CARD = ModelCard(
    architecture="LlamaForCausalLM",
    runtime="toy",
    dtype="f32",
    quantization="",
    max_model_len=64,
    vocab_size=1000,
    can_generate=True,
    can_embed=False,
    embedding_size=0,
    has_chat_template=True,
    tool_format="",
    reasoning_format="",
    adapters=("poem",),
    eos_ids=(2,),
    num_blocks=8,
    block_size=8,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    max_num_waiting=None,
    created=0,
)
