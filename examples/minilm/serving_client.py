"""Embed a few sentences over gRPC and print how alike they are; compare two more over REST."""

import http.client
import json
import os

import numpy as np

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")

SENTENCES = (
    "A man is playing a guitar.",
    "Someone performs music on a string instrument.",
    "The stock market fell sharply today.",
    "Share prices dropped.",
)


def call_grpc() -> None:
    answers = Client(GRPC, "minilm", "embed").infer([{"text": text} for text in SENTENCES])
    vectors = np.stack([answer["embedding"] for answer in answers])
    print("gRPC embed:", vectors.shape, vectors.dtype)
    for text, row in zip(SENTENCES, vectors @ vectors.T, strict=True):
        print("  ", " ".join(f"{value:5.2f}" for value in row), "", text)


def call_rest() -> None:
    body = {"instances": {"left": "How old are you?", "right": "What is your age?"}}
    connection = http.client.HTTPConnection(HTTP)
    connection.request("POST", "/model/minilm:similarity", json.dumps(body))
    print("REST similarity:", json.loads(connection.getresponse().read()))


if __name__ == "__main__":
    call_grpc()
    call_rest()
