"""The configuration of llm-serving's first release.  It is read, not run; EasyDict need not be
installed.  Relative paths are relative to this file.
"""

from easydict import EasyDict

SERVER_APP_HOST = "127.0.0.1"
SERVER_APP_PORT = 9811

# A Hugging Face directory, or prefill.mindir and decode.mindir as llm.export_mindir writes them.
prefill_model_path = ["../../tiny_llm/model"]
decode_model_path = ["../../tiny_llm/model"]

Baseconfig = EasyDict(
    {
        "seq_length": [256, 512],
        "max_generate_length": 512,
        "batch_size": 8,
        "dyn_batch_size": [1, 8, 16],
        "batching_strategy": "continuous",
    }
)

AgentConfig = EasyDict(
    {
        "prefill_model": prefill_model_path,
        "decode_model": decode_model_path,
        "AgentPorts": [9820],
    }
)

AgentIP = "localhost"
ModelName = "llama_dyn"
