"""Serve retrieval, and the servables that it calls: minilm and SmolLM2."""

import os
import sys
from pathlib import Path

from mindspore_serving import server

HERE = Path(__file__).resolve().parent
GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")

sys.path.insert(0, str(HERE.parent))
from smollm2 import INSTALL, find_model  # noqa: E402


def main() -> None:
    model = find_model()
    if model is None:
        sys.exit(f"SmolLM2 is not installed; run: {INSTALL}")
    server.start_servables(
        [
            server.ServableStartConfig(str(HERE.parent / "minilm"), "minilm", device_ids=0),
            server.ServableStartConfig(
                str(model.parent), model.name, device_ids=0, alias="smollm2"
            ),
            server.ServableStartConfig(str(HERE), "retrieval", device_ids=0),
        ]
    )
    server.start_grpc_server(GRPC)
    server.start_restful_server(HTTP)


if __name__ == "__main__":
    main()
