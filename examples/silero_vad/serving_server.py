"""Serve silero_vad, which detects speech in streams of sound, over gRPC and REST."""

import os
from pathlib import Path

from mindspore_serving import server

HERE = Path(__file__).resolve().parent
GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")


def main() -> None:
    config = server.ServableStartConfig(
        servable_directory=str(HERE),
        servable_name="silero_vad",
        device_ids=0,
    )
    server.start_servables(servable_configs=config)
    server.start_grpc_server(GRPC)
    server.start_restful_server(HTTP)


if __name__ == "__main__":
    main()
