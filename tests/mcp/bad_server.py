"""An MCP server for tests that is bad in one way, named by its argument; without the SDK."""

import json
import sys
import time

BAD = sys.argv[1]
TOOL = {"name": "add", "inputSchema": {"type": "object"}}


def tools():
    if BAD == "twice":
        return {"tools": [TOOL, TOOL]}
    if BAD == "many":
        return {"tools": [{**TOOL, "name": f"tool{index}"} for index in range(1000)]}
    if BAD == "schema":
        return {
            "tools": [
                {**TOOL, "inputSchema": {"type": "object", "properties": {"a": {"type": "what"}}}}
            ]
        }
    if BAD == "pages":
        return {"tools": [], "nextCursor": "more"}
    if BAD == "kind":
        return {"tools": [{"name": 7}]}
    return {"tools": [TOOL]}


def write(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def call():
    while BAD == "line":
        write("x" * 65536)
    while BAD == "lines":
        write(json.dumps({"jsonrpc": "2.0", "method": "notifications/x", "params": {}}) + "\n")
    while BAD == "hangs":
        time.sleep(1)
    write("this is no JSON\n" * (BAD == "text"))
    return {"content": [{"type": "text", "text": "3"}]}


for text in sys.stdin:
    request = json.loads(text)
    method = request["method"]
    if "id" not in request:
        continue
    version = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    info = {"serverInfo": {"name": "bad", "version": "1"}}
    if method == "initialize":
        result = {"result": {**version, **info}}
    elif method == "tools/list":
        result = {"result": tools()}
    elif method == "tools/call":
        result = {"result": call()}
    else:
        result = {"error": {"code": -32601, "message": "no such method"}}
    write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **result}) + "\n")
