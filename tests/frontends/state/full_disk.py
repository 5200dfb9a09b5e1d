"""A server whose state is on a disk that becomes full: `full_disk.py DIRECTORY`.

The last line is JSON: what clients were answered.
"""

import json
import sys

import openai

from tests.frontends.anthropic.conftest import mount
from tests.frontends.openai.serving import serving
from tests.frontends.openai.test_batches import client_of, upload

TEXT = "x" * 200_000
HEADERS = {"anthropic-version": "2023-06-01"}
HELLO = {"model": "toy", "max_tokens": 3, "messages": [{"role": "user", "content": TEXT}]}
BATCH = {"requests": [{"custom_id": str(number), "params": HELLO} for number in range(5)]}


def main(directory: str) -> dict[str, object]:
    found: dict[str, object] = {}
    with serving(mount, directory=directory) as web, client_of(web) as client:
        files = []
        try:
            while len(files) < 1000:
                files.append(upload(client, TEXT))
        except openai.RateLimitError as error:
            found["upload"] = error.body
        found["files"] = len(files)
        found["listed"] = len(client.files.list(limit=1000).data)
        found["chat"] = web.chat().status
        web.inference.script = lambda request: None  # so that batches keep their room
        for _ in range(9):
            found["messages"] = web.call("POST", "/v1/messages/batches", BATCH, HEADERS).json
        found["deleted"] = [client.files.delete(file.id).deleted for file in files]
        found["again"] = upload(client, TEXT).bytes
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
