"""Settings of protocol v2: levels of the log, and traces."""

from types import SimpleNamespace

import pytest

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.v2 import settings
from mindspore_serving.frontends.v2.answers import LogSettings
from mindspore_serving.tracing import options
from mindspore_serving.tracing.options import TraceOptions


@pytest.fixture(autouse=True)
def from_warnings():
    log.set_level("2")
    yield
    log.set_level(None)
    options.change_ratio(None)


def test_the_levels_are_shown():
    assert settings.log_settings() == LogSettings(
        log_file="",
        log_info=False,
        log_warning=True,
        log_error=True,
        log_verbose_level=0,
        log_format="default",
    )


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "2"),
        ({"log_info": True}, "1"),
        ({"log_info": True, "log_verbose_level": 1}, "0"),
        ({"log_warning": False}, "3"),
        ({"log_warning": False, "log_error": False}, "4"),
        ({"log_file": "", "log_format": "default"}, "2"),
    ],
)
def test_a_log_level_includes_all_levels_above(changes, level):
    assert settings.change_log_settings(changes) == settings.log_settings()
    assert log.get_level() == level


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"log_error": False}, "needs all above it"),
        ({"log_verbose_level": 1}, "needs all above it"),
        ({"log_info": 1}, "expected bool"),
        ({"log_verbose_level": -1}, "expected int"),
        ({"log_verbose_level": True}, "expected int"),
        ({"log_file": "/tmp/file"}, "cannot be changed"),
        ({"log_format": "ISO8601"}, "cannot be changed"),
        ({"log_colour": True}, "unknown"),
        ({"log_info": True, "log_file": "x"}, "cannot be changed"),
    ],
)
def test_unsupported_settings_are_refused_and_change_nothing(changes, problem):
    with pytest.raises(InvalidInputs, match=problem):
        settings.change_log_settings(changes)
    assert log.get_level() == "2"


def test_lines_are_logged_from_the_level_on(capsys):
    log.set_level("1")
    log.info("this is shown")
    log.set_level("2")
    log.info("this is not")
    shown = capsys.readouterr().err
    assert "this is shown" in shown
    assert "this is not" not in shown


@pytest.mark.parametrize("changes", [{}, {"trace_level": ["OFF"]}, {"trace_rate": None}])
def test_traces_are_off_unless_the_operator_wants_them(changes):
    assert settings.change_trace_settings(changes, None).trace_level == ["OFF"]


@pytest.mark.parametrize(
    ("ratio", "level", "rate"),
    [(None, "TIMESTAMPS", "1"), (0.01, "TIMESTAMPS", "100"), (0, "OFF", "0")],
)
def test_the_trace_rate_is_the_inverse_of_the_sampling_ratio(ratio, level, rate):
    found = settings.trace_settings(TraceOptions(ratio=ratio))
    assert (found.trace_level, found.trace_rate) == ([level], rate)


@pytest.mark.parametrize("changes", [{"trace_level": ["TIMESTAMPS"]}, {"trace_speed": "1"}])
def test_clients_cannot_switch_traces_on(changes):
    with pytest.raises(InvalidInputs):
        settings.change_trace_settings(changes, None)


@pytest.mark.parametrize("is_allowed", [None, False])
def test_traces_are_changed_only_with_permission(is_allowed):
    repository = None if is_allowed is None else SimpleNamespace(is_allowed=is_allowed)
    with pytest.raises(InvalidInputs, match="only the operator of the server can change it"):
        settings.change_trace_settings({"trace_level": ["OFF"]}, TraceOptions(), repository)
    assert options.changed_ratio() is None


@pytest.mark.parametrize(
    ("before", "changes", "ratio"),
    [
        (None, {"trace_level": ["OFF"]}, 0.0),
        (None, {"trace_rate": ["4"]}, 0.25),
        (0.0, {"trace_level": "TIMESTAMPS", "trace_rate": 4}, 0.25),
        (0.0, {"trace_level": ["TIMESTAMPS"]}, 0.1),
        (0.5, {"trace_level": ["TIMESTAMPS"]}, 0.5),
        (0.5, {"trace_rate": None}, None),
        (0.0, {"trace_level": None}, None),
        (0.5, {}, 0.5),
    ],
)
def test_the_level_and_the_rate_decide_the_share_of_traces(before, changes, ratio):
    options.change_ratio(before)
    allowing = SimpleNamespace(is_allowed=True)
    changed = settings.change_trace_settings(changes, TraceOptions(ratio=0.1), allowing)
    assert options.changed_ratio() == ratio
    assert changed == settings.trace_settings(TraceOptions(ratio=0.1))
