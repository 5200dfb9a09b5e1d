"""`mindspore-serving tune`: its texts and charts, and real servables within little time."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_serving import cli
from mindspore_serving.cli import config_file, tune, tune_chart, tune_report
from mindspore_serving.cli.tune_goals import parse, to_goal
from mindspore_serving.cli.tune_results import Trial
from mindspore_serving.cli.tune_search import Decision
from mindspore_serving.cli.tune_servers import served
from mindspore_serving.cli.tune_settings import TuneSettings
from mindspore_serving.errors import StartError
from tests.cli.commands import SERVING, Command, call
from tests.cli.conftest import write_onnx, write_words
from tests.cli.test_bench_engines import children
from tests.cli.test_tune_results import FASTEST, at_rate
from tests.waiting import eventually

SHORT = ["--concurrency", "2", "--time", "1"]
TRIALS = [
    Trial({}, [({2: at_rate(100)}, {2: at_rate(90)})] * 3),
    Trial({"cores": "0"}, [({2: at_rate(100)}, {2: at_rate(300, 0.005)})] * 3),
    Trial({"cores": "1"}, failure="no such core"),
]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    return write_words(tmp_path)


# --- texts --------------------------------------------------------------------------------------


def test_the_frontier_is_a_table_with_the_letters_of_the_chart() -> None:
    goal = to_goal(parse("p99<8ms"), is_language=False)
    every = tune_report.all_points(TRIALS, goal, is_language=False)
    heading, row = tune_report.frontier_table(every, goal, is_language=False)
    assert heading.split()[:4] == ["clients", "requests/s", "p50", "ms"]
    assert row.split() == ["A", "2", "300", "5.00", "5.00", "30", "(few)", "kept", "cores", "0"]
    lines = tune_chart.lines(tune_report.chart(every, goal, is_language=False))
    assert lines[0] == "requests per second"
    assert lines[1].startswith("300 |")
    assert "A" in lines[1]
    assert "." in "".join(lines[2:-2])  # the defaults
    assert lines[-1].split() == ["0", "p99,", "ms", "10.0"]


def test_a_chart_without_points_is_empty() -> None:
    chart = tune_report.chart([], FASTEST, is_language=True)
    assert "tokens per second" in tune_chart.lines(chart)[0]
    assert "<svg" in tune_chart.page(chart, ["text"])


def test_the_page_has_the_points_with_their_settings_and_no_scripts() -> None:
    every = tune_report.all_points(TRIALS, FASTEST, is_language=False)
    page = tune_chart.page(tune_report.chart(every, FASTEST, is_language=False), ["a < b"])
    assert page.count("<circle") == 2
    assert "<title>cores 0, 2 clients: 300/s, 5.00 ms</title>" in page
    assert "a &lt; b" in page
    assert "<script" not in page


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the picture")
    every = tune_report.all_points(TRIALS, FASTEST, is_language=False)
    tune_chart.draw(tune_report.chart(every, FASTEST, is_language=False), str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes().startswith(b"\x89PNG")


def test_letters_do_not_end() -> None:
    signs = tune_chart.letters(60)
    assert (signs[0], signs[25], signs[26], signs[59]) == ("A", "Z", "a", "9")


def test_progress_says_how_settings_compare() -> None:
    lines = [tune_report.progress(trial, FASTEST, 7.4) for trial in TRIALS]
    assert lines[0].startswith("     7 s  defaults, against themselves: rate 0.90 (0.90 to 0.90)")
    assert lines[1].endswith(
        "cores 0: rate 3.00 (3.00 to 3.00) of the defaults, better than the defaults"
    )
    assert lines[2].endswith("cores 1: not measured: no such core")
    assert tune_report.failures(TRIALS) == ["not measured: cores 1: no such core"]
    slow = Trial({"cores": "0"}, [({2: at_rate(100)}, {2: at_rate(50)})] * 2)
    assert tune_report.progress(slow, FASTEST, 0).endswith("far worse, and so not measured further")
    goal = to_goal(parse("rate>200"), is_language=False)
    assert "misses the goal by a factor of 2.22" in tune_report.progress(TRIALS[0], goal, 0)
    assert "keeps the goal, which the defaults miss" in tune_report.progress(TRIALS[1], goal, 0)
    failed = Trial({}, [({2: at_rate(100)}, {2: at_rate(90, failed=2)})])
    assert "2 requests failed: late" in tune_report.progress(failed, FASTEST, 0)


def test_the_error_is_the_ratio_of_the_defaults_to_themselves() -> None:
    (line,) = tune_report.error_line(TRIALS, FASTEST)
    assert "themselves, which shows the error: 0.90 (0.90 to 0.90); differences of this" in line
    same = Trial({}, [({2: at_rate(100)}, {2: at_rate(rate)}) for rate in (99, 100, 101)])
    assert tune_report.error_line([same], FASTEST)[0].endswith("error: 1.00 (0.98 to 1.03)")
    assert tune_report.error_line(TRIALS, to_goal(parse("rate>200"), is_language=False)) == []


def test_the_json_has_all_runs() -> None:
    content = json.loads(json.dumps(tune_report.to_json(TRIALS, FASTEST, Decision({}, "why"))))
    assert [trial["changes"] for trial in content["trials"]] == [{}, {"cores": "0"}, {"cores": "1"}]
    assert content["trials"][1]["ratio"]["value"] == pytest.approx(3.0)
    assert content["trials"][1]["runs"]["2"]["answered"] == 30
    assert content["trials"][2]["failure"] == "no such core"


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["word"], 1, "There is no file or directory"),
        (["words", "--goal", "p99<50"], 2, "a limit of p99 needs ms or s, as p99<50ms"),
        (["words", "--goal", "quick"], 2, "expected limits as p99<50ms, rate>200"),
        (["words", "--goal", "tokens>5"], 2, "which language models alone have"),
        (["words", "--load", "none.jsonl"], 2, "--load: "),
        (["words", "--load", "bad.jsonl"], 2, "bad.jsonl:1: "),
        (["words", "--knobs", "backend"], 2, "there is nothing to tune"),
        (["words", "--knobs", "speed"], 2, "--knobs has 'speed', expected some of backend"),
        (["words", "--calibrate", "data.npz"], 2, "--calibrate is for a model file"),
        (["words", "--time", "0"], 2, "--time is 0.0, expected a number >= 1"),
        ([".", "--time", "1"], 2, "has 2 servables, tune takes one: more, words"),
    ],
)
def test_wrong_arguments_are_refused_before_a_server_starts(
    arguments: list[str], status: int, said: str, words: Path
) -> None:
    (words / "bad.jsonl").write_text('{"instance": []}\n')
    write_words(words, "more")
    done = call(["tune", *arguments], words)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


def test_without_a_chosen_method_those_of_the_servable_are_named(words: Path) -> None:
    done = call(["tune", "words", "--time", "5"], words)
    assert done.returncode == 2
    assert "the servable has the methods joined, double: choose one with --method" in done.stderr


def test_the_configuration_of_an_archive_names_the_archive(tmp_path: Path) -> None:
    write_words(tmp_path / "in")
    archive = shutil.make_archive(str(tmp_path / "words"), "zip", tmp_path / "in" / "words")
    settings = TuneSettings(servable=archive, method="double")
    tuning = tune._Tuning(settings, tune._path(settings), is_language=False)
    assert tuning._base == {"path": archive}


# --- real servables -----------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.onnx
def test_a_model_file_is_tuned_and_its_configuration_can_be_served(
    tmp_path: Path,
) -> None:
    pytest.importorskip("openvino", reason="it is the other backend")
    write_onnx(tmp_path / "net" / "net.onnx")
    options = ["--output", "server.yaml", "--chart", "out.html", "--json", "out.json"]
    done = call(["tune", "net/net.onnx", *SHORT, "--knobs", "backend", *options], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "defaults, against themselves" in done.stderr
    assert "  backend openvino: rate " in done.stderr
    assert "Best: " in done.stdout
    values = config_file.read(str(tmp_path / "server.yaml"))
    assert values["servables"][0]["paths"] == (str(tmp_path / "net" / "net.onnx"),)
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["trials"][0]["changes"] == {}
    assert content["trials"][1]["runs"]["2"]["errors"] == {}
    assert "<circle" in (tmp_path / "out.html").read_text()


@pytest.mark.e2e
@pytest.mark.long
def test_a_language_model_is_tuned_by_its_engines_options(tmp_path: Path) -> None:
    for library in ("openvino", "tokenizers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    model = Path(__file__).parents[2] / "examples" / "tiny_llm" / "model"
    words = ["tune", str(model), *SHORT, "--knobs", "speculation", "--goal", "first_p90<600s"]
    words += ["--input-tokens", "8", "--output-tokens", "4", "--output", "server.yaml"]
    done = call([*words, "--llm-option", "kv_cache_memory=64e6", "--json", "out.json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "num_speculative_tokens 0: tokens " in done.stderr
    assert "tokens per second" in done.stdout
    rows = json.loads((tmp_path / "out.json").read_text())["trials"][1]["runs"]["2"]
    assert rows["generated_tokens"] == 4 * rows["answered"]
    assert rows["cached_tokens"] < rows["prompt_tokens"] / 2  # rounds have prompts of their own
    (servable,) = config_file.read(str(tmp_path / "server.yaml"))["servables"]
    assert servable["paths"] == (str(model),)
    assert "kv_cache_memory=64000000.0" in servable["llm_option"]


@pytest.mark.e2e
def test_a_server_that_is_not_ready_in_time_is_ended(words: Path) -> None:
    content = {"servables": [{"path": str(words / "words")}]}
    with pytest.raises(StartError, match="not ready within 0 s"), served(content, limit=0.01):
        pass


@pytest.mark.e2e
def test_an_impossible_goal_ends_with_the_best_reached(words: Path) -> None:
    (words / "load.jsonl").write_text('{"method": "double", "instances": [{"x": 2}]}\n')
    goal = ["--goal", "p99<1e-6ms", "--load", "load.jsonl", "--output", "server.yaml"]
    goal += ["--knobs", "batch", "--max-batch-delay-ms", "0.1"]
    with Command([*SERVING, "tune", "words", *SHORT, *goal], words) as command:
        assert command.status() == 1, command.text
    assert "Impossible: no settings that were measured keep the goal" in command.text
    assert "Best reached, " in command.text
    assert "server.yaml is not written" in command.text
    assert not (words / "server.yaml").exists()


@pytest.fixture
def running(words: Path) -> Iterator[Command]:
    arguments = ["tune", "words", "--method", "double", "--time", "60", "--json", "out.json"]
    with Command(
        [*SERVING, *arguments, "--knobs", "delay", "--concurrency", "2"], words
    ) as command:
        yield command


@pytest.mark.e2e
def test_ctrl_c_ends_the_servers_and_prints_the_results_so_far(
    running: Command, words: Path
) -> None:
    running.says("defaults, against themselves")
    servers = eventually(lambda: len(pids := children(running.pid)) == 2 and pids)
    assert servers
    running.send(signal.SIGINT)
    assert running.status() == 130, running.text
    assert "interrupted: this is what was measured so far" in running.text
    assert "requests per second" in running.text
    for pid in servers:
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    assert json.loads((words / "out.json").read_text())["trials"]


def test_help_names_goals_and_knobs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    said = capsys.readouterr().out
    assert "p99<50ms" in said
    assert "--knobs" in said
