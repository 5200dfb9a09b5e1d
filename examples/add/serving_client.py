"""Call add: over gRPC with several instances per request, then over REST."""

import http.client
import json
import os

import numpy as np

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")


def call_add_common() -> None:
    x1 = np.array([[1, 2], [3, 4]], np.float32)
    instances = [{"x1": x1 * k, "x2": np.ones((2, 2), np.float32)} for k in (1, 2, 3)]
    for k, answer in enumerate(Client(GRPC, "add", "add_common").infer(instances), 1):
        print(f"gRPC add_common, {k} * [[1, 2], [3, 4]] + 1:", answer["y"].tolist())


def call_add_cast() -> None:
    instances = [
        {"x1": np.full((2, 2), 2, dtype), "x2": np.arange(4, dtype=dtype).reshape(2, 2)}
        for dtype in (np.int32, np.int64, np.float64)
    ]
    answers = Client(GRPC, "add", "add_cast").infer(instances)
    for instance, answer in zip(instances, answers, strict=True):
        print(f"gRPC add_cast, {instance['x1'].dtype}:", answer["y"].tolist())


def call_rest() -> None:
    body = {"instances": [{"x1": [[1, 2], [3, 4]], "x2": [[10, 20], [30, 40]]}]}
    connection = http.client.HTTPConnection(HTTP)
    connection.request("POST", "/model/add/version/1:add_cast", json.dumps(body))
    print("REST add_cast:", json.loads(connection.getresponse().read()))


if __name__ == "__main__":
    call_add_common()
    call_add_cast()
    call_rest()
