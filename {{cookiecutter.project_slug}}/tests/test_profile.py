"""A profiled run: the trace holds its steps, the weights are those of any other run."""

import importlib.util
import json
import signal
import subprocess
import sys

import pytest
from conftest import losses
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from test_training import KILLED, assert_same_weights, newest_checkpoint, start, wait_for

from {{cookiecutter.package_name}} import loop, training
from {{cookiecutter.package_name}}.profiling import parse_window

RUN = {"steps": 12, "evaluate_steps": 6, "dropout": 0.2, "strategy": "one_device"}


def traces(run_dir):
    """The traces in a run directory, where TensorBoard looks for them."""
    return sorted((run_dir / "events" / "plugins" / "profile").glob("*/*.xplane.pb"))


def events(trace, name):
    """What a trace tells of each event of a name."""
    space = xplane_pb2.XSpace.FromString(trace.read_bytes())
    return [
        {plane.stat_metadata[stat.metadata_id].name: stat.int64_value for stat in event.stats}
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == name
    ]


def marked_steps(trace):
    """The numbers of the steps that are marked in a trace."""
    marks = events(trace, "train")
    assert all(mark["_r"] == 1 for mark in marks)
    return sorted(mark["step_num"] for mark in marks)


def test_the_trace_holds_the_steps_asked_for_and_the_weights_stay_the_same(train, capfd):
    _, plain = train("plain", **RUN)
    code, profiled = train("profiled", profile="4:9", **RUN)  # an evaluation lies in between
    assert code == 0
    (trace,) = traces(profiled)
    assert marked_steps(trace) == [5, 6, 7, 8, 9]
    assert_same_weights(profiled, plain)
    assert losses(profiled) == losses(plain)
    # XProf would take iterations of loops for the steps: a call is a loop, an evaluation too.
    assert {event.get("iter_num", 0) for event in events(trace, "ExecutorState::Process")} == {0}
    # TensorBoard finds it beside the run's figures.
    board = EventMultiplexer().AddRunsFromDirectory(str(profiled / "events"))
    shown = board.PluginAssets("profile")
    assert [name.rstrip("/") for name in shown["."]] == [trace.parent.name]
    error = capfd.readouterr().err
    assert f"steps 5 to 9 are traced in {trace.parent}" in error
    assert f"tensorboard --logdir={profiled / 'events'}" in error


def test_only_profiled_steps_are_called_one_by_one(train, monkeypatch):
    calls = []
    made = loop.Loop.train
    monkeypatch.setattr(
        loop.Loop, "train", lambda self, it, steps: calls.append(steps) or made(self, it, steps)
    )
    train(**{**RUN, "steps": 24, "evaluate_steps": 24}, steps_per_call=8, profile="10:13")
    assert calls == [8, 2, 1, 1, 1, 8, 3]


def test_a_resumed_run_profiles_what_lies_ahead(train, capfd):
    _, run_dir = train(**RUN, profile="8:10")
    newest = newest_checkpoint(run_dir)
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()  # as if it had been killed after step 6
    before = traces(run_dir)
    assert train(**RUN, profile="5:8")[0] == 0  # step 6 is behind
    (new,) = set(traces(run_dir)) - set(before)
    assert marked_steps(new) == [7, 8]
    capfd.readouterr()
    assert train(**RUN, profile="2:4")[0] == 0  # a command repeated, its window behind
    assert len(traces(run_dir)) == 2
    assert "step 4 is behind: nothing is traced" in capfd.readouterr().err


def test_sigterm_in_the_middle_still_writes_the_trace(train, tmp_path):
    asked = {**KILLED, "steps": 2000, "evaluate_steps": 2000}
    broken = tmp_path / "broken"
    process = start(broken, profile="2:2000", **asked)
    wait_for((broken / "metrics.jsonl").exists, process)  # a line after every tenth step
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 143, out
    last = json.loads((broken / "result.json").read_text())["last_step"]
    assert 3 <= last < 2000
    (trace,) = traces(broken)
    assert marked_steps(trace) == list(range(3, last + 1))
    assert "Traceback" not in out and f"steps 3 to {last} are traced" in out


@pytest.mark.parametrize("window", ["4", "4:", ":4", "4:4", "5:4", "-1:4", "a:b", "4:5:6", "4-5"])
def test_a_window_that_is_none_is_one_line_and_exit_code_2(train, capfd, window):
    code, run_dir = train(**RUN, profile=window)
    error = capfd.readouterr().err
    assert code == 2
    assert [line for line in error.splitlines() if line.startswith("train:")] == [
        error.splitlines()[-1]
    ]
    assert f"--profile={window}: give START:STOP" in error and "Traceback" not in error
    assert not run_dir.exists()


def test_a_window_beyond_the_last_step_is_an_error_before_the_first(train, capfd):
    code, run_dir = train(**RUN, profile="10:13")
    assert code == 2
    assert "--profile=10:13 ends beyond the run's last step: give a STOP of at most 12" in (
        capfd.readouterr().err
    )
    assert not (run_dir / "metrics.jsonl").exists()


def test_two_profilers_in_one_process_are_one_line(train, capfd, tmp_path, monkeypatch):
    import tensorflow as tf

    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        code, _ = train(**RUN, profile="2:4")
    finally:
        tf.profiler.experimental.stop()
    assert code == 2
    assert "profiles this process already" in capfd.readouterr().err


def test_no_window_is_no_profile():
    assert not parse_window("")
    assert list(parse_window("3:5")) == [3, 4]
    assert training.State().step not in parse_window("")


XPROF = """
import json, sys
from xprof.convert.raw_to_tool_data import xspace_to_tool_data
told = {}
for tool in ("input_pipeline_analyzer", "overview_page"):
    told[tool] = json.loads(xspace_to_tool_data(sys.argv[1:], tool, {})[0])
print(json.dumps(told))
"""


@pytest.mark.skipif(not importlib.util.find_spec("xprof"), reason="xprof is not installed")
@pytest.mark.parametrize("more", [{}, {"accumulate": 2}, {"logical_devices": 2}])
def test_xprofs_input_analysis_sees_the_steps(train, more):
    flags = {**RUN, **more, "strategy": "mirrored" if "logical_devices" in more else "one_device"}
    _, run_dir = train(**flags, profile="4:9")  # an evaluation lies in between
    # In a process of its own: XProf brings its own copy of TensorFlow's profiler.
    done = subprocess.run(
        [sys.executable, "-c", XPROF, *map(str, traces(run_dir))],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    for tables in told.values():
        steps = next(t for t in tables if "steptime_ms_average" in t.get("p", {}))
        names = [column["id"] for column in steps["cols"]]
        rows = [dict(zip(names, (c["v"] for c in row["c"]), strict=True)) for row in steps["rows"]]
        assert [row["stepnum"] for row in rows] == [f"train {n}" for n in (5, 6, 7, 8, 9)]
        assert float(steps["p"]["steptime_ms_average"]) > 0
        assert any(row["infeedTimeMs"] > 0 for row in rows)  # the wait for input is told apart
        assert "input-bound" in steps["p"]["input_conclusion"]
