"""Serve silero_vad, a model file alone that detects speech, over gRPC and REST."""

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
        # Batches the chunks of several streams; by default each run has one stream.
        batch_axis={"state": 1, "stateN": 1, "sr": -1},
    )
    server.start_servables(servable_configs=config)
    server.start_grpc_server(GRPC)
    server.start_restful_server(HTTP)


if __name__ == "__main__":
    main()
