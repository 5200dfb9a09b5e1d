import json
import os
import re
import subprocess
import sys
from datetime import datetime

import pytest

from mindspore_serving import log
from tests.ports import free_port
from tests.waiting import PATIENCE

SCRIPT = """
from mindspore_serving import log
log.debug("debug %d", 0)
log.info("info %d", 1)
log.warning("warning %d", 2)
log.error("error %d", 3)
"""
LINE = re.compile(
    r"\[(\w+)\] SERVING\((\d+):(\d+),MainProcess\):"
    r"\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d\.\d{3}\.\d{3} \[([^]:]+):(\d+)\] (.*)"
)
NAMES = ("GLOG", "MS_SUBMODULE", "logger_", "MINDSPORE_SERVING_")


@pytest.fixture
def run(tmp_path):
    """Run a script with these settings and no others; its stderr."""

    def start(code, **settings):
        script = tmp_path / "script.py"
        script.write_text(code)
        env = {name: value for name, value in os.environ.items() if not name.startswith(NAMES)}
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**env, "PYTHONPATH": os.getcwd(), **settings},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return done.stderr

    return start


@pytest.fixture
def settings(monkeypatch):
    """Set the environment of this process and forget what was read before."""
    for name in list(os.environ):
        if name.startswith(NAMES):
            monkeypatch.delenv(name)
    monkeypatch.setattr(log, "_changed_level", None)  # a server of another test may have one

    def use(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        log._settings.cache_clear()

    use()
    yield use
    log._settings.cache_clear()


def levels(text):
    return [line.split("]")[0][1:] for line in text.splitlines()]


ALL = ["DEBUG", "INFO", "WARNING", "ERROR"]


@pytest.mark.parametrize("level", range(5))
def test_a_level_hides_lower_levels(run, level):
    assert levels(run(SCRIPT, GLOG_v=str(level))) == ALL[level:]


def test_warnings_are_shown_by_default(run):
    assert levels(run(SCRIPT)) == ["WARNING", "ERROR"]


@pytest.mark.parametrize(
    "submodules", ["{SERVING:1}", "{MD:3,SERVING:1}", "{ SERVING : 1 , MD:3 }"]
)
def test_the_level_of_the_submodule_wins(run, submodules):
    shown = levels(run(SCRIPT, GLOG_v="3", MS_SUBMODULE_LOG_v=submodules))
    assert shown == ["INFO", "WARNING", "ERROR"]


@pytest.mark.parametrize("submodules", ["{MD:0}", "", "nonsense", "{MYSERVING:0}"])
def test_levels_of_other_submodules_are_not_ours(run, submodules):
    shown = levels(run(SCRIPT, GLOG_v="3", MS_SUBMODULE_LOG_v=submodules))
    assert shown == ["ERROR"]


def test_a_line_has_level_process_time_place_and_message(run):
    line = run(SCRIPT).splitlines()[0]
    level, _, _, path, number, message = LINE.fullmatch(line).groups()
    assert (level, path, number, message) == ("WARNING", "script.py", "5", "warning 2")


def test_a_log_file_has_all_lines_and_stderr_those_over_its_threshold(run, tmp_path):
    shown = run(
        SCRIPT,
        GLOG_v="1",
        GLOG_logtostderr="0",
        GLOG_log_dir=str(tmp_path),
        GLOG_stderrthreshold="3",
    )
    assert levels(shown) == ["ERROR"]
    (file,) = tmp_path.glob("mindspore_serving.log.*")
    lines = file.read_text().splitlines()
    assert levels("\n".join(lines)) == ["INFO", "WARNING", "ERROR"]
    assert file.name == f"mindspore_serving.log.{LINE.fullmatch(lines[0])[2]}"


def test_a_log_file_is_rotated_and_readable_by_its_owner_only(run, tmp_path):
    code = "from mindspore_serving import log\nfor i in range(20): log.error('x' * 100)\n"
    run(
        code,
        GLOG_logtostderr="0",
        GLOG_log_dir=str(tmp_path),
        logger_maxBytes="1000",
        logger_backupCount="2",
    )
    files = list(tmp_path.glob("mindspore_serving.log.*"))
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3


def test_importing_reads_no_setting(run):
    assert run("from mindspore_serving import log\n", GLOG_v="nine") == ""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"GLOG_v": "nine"}, "GLOG_v should be one of 0, 1, 2, 3, 4, but it is 'nine'"),
        ({"GLOG_logtostderr": "2"}, "GLOG_logtostderr should be one of 0, 1, but it is '2'"),
        ({"GLOG_logtostderr": "0"}, "GLOG_log_dir must be an existing directory"),
        ({"GLOG_logtostderr": "0", "GLOG_log_dir": "/no/such"}, "but it is '/no/such'"),
        ({"logger_maxBytes": "9" * 5000}, "logger_maxBytes should be a number >= 0, but it is '99"),
        ({"logger_maxBytes": "-1"}, "logger_maxBytes should be a number >= 0, but it is '-1'"),
        ({"logger_backupCount": "many"}, "logger_backupCount should be a number >= 0"),
        ({"GLOG_stderrthreshold": "7"}, "GLOG_stderrthreshold should be one of"),
        ({"MS_SUBMODULE_LOG_v": "{SERVING:9}"}, "MS_SUBMODULE_LOG_v should be one of"),
    ],
)
def test_a_setting_that_cannot_be_used_is_a_value_error(settings, values, text):
    settings(**values)
    with pytest.raises(ValueError, match=re.escape(text)):
        log.get_level()


def test_the_settings_in_force_can_be_read(settings, tmp_path):
    assert (log.get_level(), log.get_log_config()) == (
        "2",
        {"GLOG_v": "2", "GLOG_logtostderr": "1"},
    )
    settings(
        GLOG_v="0",
        GLOG_logtostderr="0",
        GLOG_log_dir=str(tmp_path),
        logger_maxBytes="5",
        MS_SUBMODULE_LOG_v="{SERVING:1}",
    )
    assert log.get_level() == "1"
    assert log.get_log_config() == {
        "GLOG_v": "1",
        "GLOG_logtostderr": "0",
        "GLOG_log_dir": str(tmp_path),
        "logger_maxBytes": "5",
        "logger_backupCount": "30",
        "GLOG_stderrthreshold": "2",
    }


def test_control_characters_are_escaped():
    assert log.escape("a\nb\r\x1b[31m\x00\x7f\x85") == r"a\nb\r\x1b[31m\x00\x7f\x85"
    assert log.escape("a\u2028b\u202ec") == r"a\u2028b\u202ec"
    assert log.escape("naïve 数 ok") == "naïve 数 ok"


def test_a_message_cannot_forge_a_line(run):
    forged = "x\n[ERROR] SERVING(1:1,MainProcess):forged"
    shown = run(f"from mindspore_serving import log\nlog.error('bad name %s', {forged!r})\n")
    assert len(shown.splitlines()) == 1
    assert r"bad name x\n[ERROR] SERVING" in shown


def test_a_traceback_is_indented_below_its_line(run):
    code = """
from mindspore_serving import log
try:
    raise ValueError("a\\n[ERROR] forged")
except ValueError:
    log.error("failed", exc_info=True)
"""
    first, *rest = run(code).splitlines()
    assert LINE.fullmatch(first)[6] == "failed"
    assert rest[0] == "    Traceback (most recent call last):"
    assert "    ValueError: a" in rest
    assert all(line.startswith("    ") for line in rest)


def test_a_replaced_stderr_gets_the_next_line(capsys):
    log.error("seen by %s", "capsys")
    assert "seen by capsys" in capsys.readouterr().err


def test_lines_can_be_objects_that_nobody_can_forge(run):
    script = (
        "from mindspore_serving import log\n"
        "with log.of_request('r-1'):\n"
        "    log.warning('a %s', 'b\\n{\"level\": \"ERROR\"}\\u2028\\x1b[0m')\n"
        "try:\n"
        "    1 / 0\n"
        "except ZeroDivisionError:\n"
        "    log.error('failed', exc_info=True)\n"
    )
    text = run(script, MINDSPORE_SERVING_LOG_FORMAT="json")
    first, second = map(json.loads, text.splitlines())
    assert first["message"] == 'a b\n{"level": "ERROR"}\u2028\x1b[0m'
    assert (first["level"], first["logger"]) == ("WARNING", "mindspore_serving")
    assert first["request_id"] == "r-1"
    assert first["file"] == "script.py:3"
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["request_id"] == ""
    assert "ZeroDivisionError" in second["exception"]
    assert text.isascii()
    assert "\x1b" not in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_is_written_whatever_the_level(run, form):
    script = (
        "from mindspore_serving import log\n"
        "log.warning('hidden')\n"
        "log.event('response', {'code': 200, 'path': '/a b\\n[ERROR]'})\n"
    )
    text = run(script, MINDSPORE_SERVING_LOG_LEVEL="error", MINDSPORE_SERVING_LOG_FORMAT=form)
    (line,) = text.splitlines()
    if form == "text":
        assert line.endswith('[script.py:3] response code=200 path="/a b\\n[ERROR]"')
    else:
        found = json.loads(line)
        assert (found["message"], found["code"]) == ("response", 200)
        assert found["path"] == "/a b\n[ERROR]"


def test_the_level_by_name_has_priority(run):
    assert levels(run(SCRIPT, GLOG_v="3", MINDSPORE_SERVING_LOG_LEVEL="info")) == ALL[1:]
    settings = {"MS_SUBMODULE_LOG_v": "{SERVING:0}", "MINDSPORE_SERVING_LOG_LEVEL": "error"}
    assert levels(run(SCRIPT, **settings)) == ["ERROR"]


def test_settings_can_be_changed_before_anything_is_started(run):
    script = f"""
import os
from mindspore_serving import log
log.warning("before")
log.configure({{"MINDSPORE_SERVING_LOG_LEVEL": "debug", "MINDSPORE_SERVING_ACCESS_LOG": "1"}})
assert os.environ["MINDSPORE_SERVING_LOG_LEVEL"] == "debug"
assert log.has_access_log() and not log.has_requests()
assert log.is_shown("0")
{SCRIPT}
try:
    log.configure({{"MINDSPORE_SERVING_LOG_FORMAT": "xml"}})
except ValueError as error:
    assert "MINDSPORE_SERVING_LOG_FORMAT should be one of text, json" in str(error)
    assert "MINDSPORE_SERVING_LOG_FORMAT" not in os.environ
    log.error("refused")
"""
    assert levels(run(script)) == ["WARNING", *ALL, "ERROR"]


def test_a_server_logs_its_start_and_a_refused_second_start(run):
    script = f"""
from mindspore_serving import server
server.start_restful_server("127.0.0.1:{free_port()}")
try:
    server.start_restful_server("127.0.0.1:{free_port()}")
except RuntimeError:
    server.stop()
"""
    started, refused = run(script, GLOG_v="1").splitlines()
    assert started.startswith("[INFO]")
    assert "RESTful server start success, listening on 127.0.0.1" in started
    assert refused.startswith("[ERROR]")
    assert "RESTful server is already running" in refused


def test_who_logs_an_event_does_not_wait_for_the_file(tmp_path):
    script = """
import os, sys, threading
from mindspore_serving import log
from mindspore_serving.log import events
events.MAX_QUEUED = 100
reader, writer = os.pipe()
sys.stderr = os.fdopen(writer, "w")
for number in range(3000):  # more than the pipe holds, which nobody reads
    log.event("response", {"number": number, "path": "x" * 100})
print("written")
text = []
def read():
    with os.fdopen(reader) as lines:
        text.extend(lines)
thread = threading.Thread(target=read)
thread.start()
writer = log._events()
writer._queue.put(None)
writer._thread.join()
sys.stderr.close()
thread.join()
numbers = [line for line in text if "response number=" in line]
assert 100 <= len(numbers) < 3000
assert any("log lines about requests were dropped" in line for line in text)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr
