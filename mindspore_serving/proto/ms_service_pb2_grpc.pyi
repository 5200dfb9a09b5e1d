"""Types of the generated module beside this file, for those who check them."""

from typing import Any

import grpc

class MSServiceStub:
    Predict: Any
    PredictStream: Any
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...

class MSServiceServicer:
    def Predict(self, request: Any, context: Any) -> Any: ...
    def PredictStream(self, request: Any, context: Any) -> Any: ...

def add_MSServiceServicer_to_server(
    servicer: MSServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
