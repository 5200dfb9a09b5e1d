"""Call both graphs of matmul over gRPC, and the small one over REST."""

import http.client
import json
import os

import numpy as np

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")


def call_grpc() -> None:
    whole = np.ones((64, 96), np.float32)
    answers = Client(GRPC, "matmul", "project").infer([{"x": whole}, {"x": whole[:1]}])
    for answer in answers:
        print("gRPC project:", answer["y"].shape, answer["y"][0, :4])
    (answer,) = Client(GRPC, "matmul", "step").infer({"x": whole})
    print("gRPC step:", answer["last"][0, :4], "difference", float(answer["difference"]))


def call_rest() -> None:
    body = json.dumps({"instances": {"x": np.ones((1, 96)).tolist()}})
    connection = http.client.HTTPConnection(HTTP)
    connection.request("POST", "/model/matmul:project", body)
    reply = json.loads(connection.getresponse().read())
    print("REST project:", reply["instances"][0]["y"][0][:4])


if __name__ == "__main__":
    call_grpc()
    call_rest()
