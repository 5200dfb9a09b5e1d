"""Rank tables for tests, in both formats, with the fields of real ones that are not read."""

import json
from typing import Any

IP = "127.0.0.1"


def servers(*machines: "tuple[str, int]") -> dict[str, Any]:
    """A table with so many ranks on each machine."""
    first = 0
    found = []
    for ip, count in machines:
        devices = [
            {"device_id": str(d), "device_ip": f"192.{d + 1}.27.6", "rank_id": str(first + d)}
            for d in range(count)
        ]
        found.append({"server_id": ip, "device": devices, "host_nic_ip": "reserve"})
        first += count
    return {"version": "1.0", "server_count": "1", "server_list": found, "status": "completed"}


def groups(*machines: "tuple[str, int]") -> dict[str, Any]:
    """The same ranks in the other format."""
    instances = [
        {
            "devices": [{"device_id": one["device_id"], "device_ip": one["device_ip"]}],
            "rank_id": one["rank_id"],
            "server_id": server["server_id"],
        }
        for server in servers(*machines)["server_list"]
        for one in server["device"]
    ]
    return {
        "group_count": "1",
        "group_list": [{"group_name": "all", "instance_list": instances}],
        "status": "completed",
    }


def text(*machines: "tuple[str, int]") -> str:
    return json.dumps(servers(*machines))
