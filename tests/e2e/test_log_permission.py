"""A server that lets clients change what it logs."""

from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import log
from tests.e2e.harness import config, serving, write_servable

tritonclient_grpc = pytest.importorskip("tritonclient.grpc")
tritonclient_http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")
SOURCE = """
@method("y")
def same(x):
    return x
"""


def change_by_http(address: str, http: int, changes: dict[str, Any]) -> None:
    with tritonclient_http.InferenceServerClient(f"127.0.0.1:{http}") as client:
        client.update_log_settings(changes)


def change_by_grpc(address: str, http: int, changes: dict[str, Any]) -> None:
    with tritonclient_grpc.InferenceServerClient(address) as client:
        client.update_log_settings(changes)


@pytest.mark.parametrize("front_ends", [1, 2])
def test_log_levels_are_changed_only_with_permission(tmp_path: Path, front_ends: int) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    options: dict[str, Any] = {"use_status_codes": True, "allow_loading": True}
    toy = config(tmp_path, "toy")
    try:
        with serving(tmp_path, toy, front_ends=front_ends, **options) as calls:
            for change, level, flag in ((change_by_http, "1", True), (change_by_grpc, "2", False)):
                change(calls.grpc, calls.http, {"log_info": flag})
                assert log.get_level() == level
                with pytest.raises(utils.InferenceServerException, match="cannot be changed"):
                    change(calls.grpc, calls.http, {"log_file": "/tmp/x"})
    finally:
        log.set_level(None)
