"""Call the two methods of add_sub over gRPC, and one over REST."""

import http.client
import json
import os

import numpy as np

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")

X1 = np.array([[1, 2], [3, 4]])
X2 = np.array([[5, 6], [7, 8]])


def call_grpc() -> None:
    instances = [{"x1": X1, "x2": X2, "x3": np.full((2, 2), k)} for k in range(3)]
    for k, answer in enumerate(Client(GRPC, "add_sub", "add_sub").infer(instances)):
        print(f"gRPC add_sub, x3 = {k}:", answer["y"].tolist())
    for k, answer in enumerate(Client(GRPC, "add_sub", "double_add_sub").infer(instances)):
        print(f"gRPC double_add_sub, x3 = {k}:", answer["y"].tolist(), "|", answer["text"])


def call_rest() -> None:
    instance = {"x1": X1.tolist(), "x2": X2.tolist(), "x3": [[1, 1], [1, 1]]}
    connection = http.client.HTTPConnection(HTTP)
    connection.request("POST", "/model/add_sub:add_sub", json.dumps({"instances": [instance]}))
    print("REST add_sub:", json.loads(connection.getresponse().read()))


if __name__ == "__main__":
    call_grpc()
    call_rest()
