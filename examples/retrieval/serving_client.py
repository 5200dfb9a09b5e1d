"""Ask a question over gRPC, and print the answer as it comes, then what it was made of."""

import os
import sys

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
QUESTION = "Which port does gRPC use?"


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else QUESTION
    piece = {}
    for piece in Client(GRPC, "retrieval", "answer").infer_stream({"question": question}):
        if "error" in piece:
            sys.exit(piece["error"])
        print(piece["text"], end="", flush=True)
    print("\n\nfrom:\n" + piece["sources"])


if __name__ == "__main__":
    main()
