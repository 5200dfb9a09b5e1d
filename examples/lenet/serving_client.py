"""Send held-out digits as PNG: sync gRPC, async gRPC, and REST with base64."""

import base64
import http.client
import json
import os
from pathlib import Path

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")
IMAGES = Path(__file__).resolve().parent / "test_images"


def true_digit(path: Path) -> int:
    return int(path.stem[-1])


def call_sync(paths) -> None:
    instances = [{"image": path.read_bytes()} for path in paths]
    for path, answer in zip(paths, Client(GRPC, "lenet", "predict").infer(instances), strict=True):
        print(f"sync  {path.name}: predicted {int(answer['digit'])}, true {true_digit(path)}")


def call_async(paths) -> None:
    client = Client(GRPC, "lenet", "classify")
    waiting = [client.infer_async({"image": path.read_bytes()}) for path in paths]
    for path, one in zip(paths, waiting, strict=True):
        (answer,) = one.result()
        digit, probability = answer["digit"], float(answer["probability"])
        print(f"async {path.name}: predicted {digit} ({probability:.0%}), true {true_digit(path)}")


def call_rest(paths) -> None:
    encoded = [base64.b64encode(path.read_bytes()).decode() for path in paths]
    body = {"instances": [{"image": {"b64": text}} for text in encoded]}
    connection = http.client.HTTPConnection(HTTP)
    connection.request("POST", "/model/lenet:classify", json.dumps(body))
    answers = json.loads(connection.getresponse().read())["instances"]
    for path, answer in zip(paths, answers, strict=True):
        print(f"REST  {path.name}: predicted {answer['digit']}, true {true_digit(path)}")


if __name__ == "__main__":
    held_out = sorted(IMAGES.glob("*.png"))
    call_sync(held_out[:20])
    call_async(held_out[20:30])
    call_rest(held_out[30:40])
