"""MLServer with a custom runtime, adding one: `python mlserver_add_one.py HTTP GRPC`.

With its fastest settings for this: the model in the server's process, no metrics, no gzip, a reply
built without the codecs.
"""

import asyncio
import sys

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
from mlserver.utils import install_uvloop_event_loop


class AddOne(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        y = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32) + np.float32(1)
        output = ResponseOutput(name="y", datatype="FP32", shape=list(y.shape), data=y.tolist()[0])
        return InferenceResponse(id=payload.id, model_name=self.name, outputs=[output])


async def main(http_port: int, grpc_port: int) -> None:
    server = MLServer(
        Settings(
            debug=False,
            parallel_workers=0,
            host="127.0.0.1",
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_endpoint=None,
            gzip_enabled=False,
        )
    )
    await server.start([ModelSettings(name="add_one", implementation=AddOne)])


if __name__ == "__main__":
    install_uvloop_event_loop()
    asyncio.run(main(*map(int, sys.argv[1:3])))
