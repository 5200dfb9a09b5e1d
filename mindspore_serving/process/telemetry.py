"""Switches off what libraries report to their makers."""

import os
import sys


def turn_off_telemetry() -> None:
    """Have ONNX Runtime, which from 1.29 on sends names and shapes of models to Microsoft, and
    OpenVINO send nothing from this process and those that it starts, and keep no id of it on disk.
    Before they are imported; who sets ORT_DISABLE_TELEMETRY=0 gets it all the same."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # As if it were not installed, which OpenVINO allows for.  It would need a home directory, too.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
