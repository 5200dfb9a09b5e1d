"""A server whose state is on a disk that becomes full: `full_disk.py DIRECTORY`.

The last line is JSON: what clients were answered.
"""

import json
import sys

from starlette.routing import BaseRoute

from mindspore_serving.frontends.app_state import AppState
from tests.frontends.mounting import anthropic_routes, openai_routes
from tests.frontends.openai.serving import Answer, Web, serving

TEXT = "x" * 400_000
PART = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
FORM = PART.format("purpose", "", "batch") + PART.format("file", '; filename="f"', TEXT)
HELLO = {"model": "toy", "max_tokens": 3, "messages": [{"role": "user", "content": TEXT}]}
BATCH = {"requests": [{"custom_id": str(number), "params": HELLO} for number in range(2)]}


def upload(web: Web) -> Answer:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    return web.call("POST", "/v1/files", f"{FORM}--b--\r\n".encode(), headers)


def main(web: Web) -> dict[str, object]:
    found: dict[str, object] = {}
    files = []
    while len(files) < 1000 and (answer := upload(web)).status == 200:
        files.append(answer.json["id"])
    found["upload"] = answer.status, answer.error["message"]
    found["files"] = len(files)
    found["listed"] = len(web.call("GET", "/v1/files").json["data"])
    found["chat"] = web.chat().status
    web.inference.script = lambda request: None  # so that batches keep their room
    for _ in range(9):
        headers = {"anthropic-version": "2023-06-01"}
        found["messages"] = web.call("POST", "/v1/messages/batches", BATCH, headers).json
    found["deleted"] = [web.call("DELETE", f"/v1/files/{name}").status for name in files]
    found["again"] = upload(web).status
    return found


def routes(state: AppState) -> list[BaseRoute]:
    return [*anthropic_routes(state), *openai_routes(state)]


if __name__ == "__main__":
    with serving(routes, directory=sys.argv[1]) as running:
        print(json.dumps(main(running)))
