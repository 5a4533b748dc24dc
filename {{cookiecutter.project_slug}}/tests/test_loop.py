"""The loop: one call for many steps, the same numbers on one device and on two."""

import dataclasses
import functools
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import losses, rows
from test_training import start

from {{cookiecutter.package_name}} import job as jobs
from {{cookiecutter.package_name}} import loop as loops
from {{cookiecutter.package_name}} import model, task
from {{cookiecutter.package_name}}.command_line import parse
from {{cookiecutter.package_name}}.settings import Settings

MIRRORED = {"strategy": "mirrored", "logical_devices": 2}


def build(*flags, **changes):
    asked = parse(Settings, ["--data=digits", "--steps=50", "--strategy=one_device", *flags])
    return jobs.build(dataclasses.replace(asked, **changes), Path())


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Losses of 50 steps on one device."""
    path = tmp_path_factory.mktemp("reference") / "run"
    from {{cookiecutter.package_name}} import train as command

    flags = ["--data=digits", "--steps=50", "--strategy=one_device", f"--run_dir={path}"]
    assert command.main(flags) == 0
    return losses(path)


@pytest.mark.parametrize(
    "flags",
    [
        MIRRORED,
        {**MIRRORED, "jit": "on", "accumulate": 2},
        {"strategy": "one_device", "accumulate": 4},
        {"strategy": "one_device", "jit": "on"},
        {"strategy": "one_device", "cache": "memory"},
    ],
    ids=str,
)
def test_fifty_losses_agree_with_one_device(reference, train, flags):
    code, run_dir = train(steps=50, **flags)
    assert code == 0
    got = losses(run_dir)
    assert len(got) == 50
    np.testing.assert_allclose(got, reference, atol=1e-5)
    assert got[-1] < got[0]


@pytest.mark.parametrize(
    "flags", [{"accumulate": 2}, pytest.param({"jit": "on"}, marks=pytest.mark.slow)], ids=str
)
def test_fifty_losses_agree_on_four_replicas(reference, tmp_path, flags):
    flags = {"steps": 50, "data": "digits", "strategy": "mirrored", "logical_devices": 4, **flags}
    process = start(tmp_path / "run", **flags)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    np.testing.assert_allclose(losses(tmp_path / "run"), reference, atol=1e-5)


def test_many_steps_are_one_call_and_one_trace(train, monkeypatch):
    calls, original = [], loops.Loop.train

    def counted(self, iterator, steps):
        calls.append(steps)
        result = original(self, iterator, steps)
        assert self._train_call.experimental_get_tracing_count() == 1
        return result

    monkeypatch.setattr(loops.Loop, "train", counted)
    code, _ = train(steps=40, steps_per_call=20, evaluate_steps=30, strategy="one_device")
    assert code == 0
    assert calls == [20, 10, 10]  # cut at the evaluation


def test_the_number_of_steps_in_a_call_changes_no_bit(reference, train):
    _, run_dir = train(steps=50, steps_per_call=7, strategy="one_device")
    assert losses(run_dir) == reference


@pytest.mark.parametrize("flags", [{"strategy": "one_device"}, MIRRORED], ids=str)
def test_float16_trains_with_its_scale_in_the_checkpoint(train, flags):
    code, run_dir = train(steps=40, precision="mixed_float16", **flags)
    assert code == 0
    assert losses(run_dir)[-1] < losses(run_dir)[0] - 0.03
    checkpoint = next((run_dir / "checkpoints").glob("ckpt-*"))
    names = {name for name, _ in tf.train.list_variables(str(checkpoint / "tensors"))}
    assert any("dynamic_scale" in name for name in names), names


def test_an_overflow_on_one_replica_skips_the_step_on_all():
    job = build("--precision=mixed_float16", "--batch_size=4", **MIRRORED)
    weights = [v.numpy() for v in job.model.trainable_variables]
    images = np.zeros([4, 16, 16, 3], np.float32)
    images[3] = np.inf  # the second replica's half alone
    dataset = tf.data.Dataset.from_tensors((images, np.zeros(4, np.int64), np.arange(4))).repeat()
    job.loop._prepare_training = lambda features, labels, index: (features, tf.one_hot(labels, 10))
    before = float(job.optimizer.dynamic_scale.numpy())
    job.loop.train(iter(job.loop.distribute(dataset)), 1)
    assert float(job.optimizer.dynamic_scale.numpy()) == before / 2
    assert int(job.optimizer.inner_optimizer.iterations.numpy()) == 0
    for variable, old in zip(job.model.trainable_variables, weights, strict=True):
        for copy in job.devices.strategy.experimental_local_results(variable.value):
            np.testing.assert_array_equal(copy.numpy(), old)


def test_batch_statistics_are_the_mean_of_the_replicas(monkeypatch):
    def normalised(size):
        inputs = keras.layers.Input((size, size, 3))
        outputs = keras.layers.BatchNormalization(momentum=0.0)(inputs)
        return keras.Model(inputs, outputs)

    monkeypatch.setitem(model.BACKBONES, "normalised", model.Backbone(normalised))
    job = build("--model=normalised", "--batch_size=8", "--augment=none", **MIRRORED)
    batches = job.training_batches()
    job.loop.train(iter(job.loop.distribute(batches)), 1)
    pixels = next(iter(batches))[0].numpy().astype(np.float32)
    halves = [half.mean(axis=(0, 1, 2)) for half in (pixels[:4], pixels[4:])]
    assert np.abs(halves[0] - halves[1]).max() > 1
    mean = next(v for v in job.loop._statistics if v.path.endswith("moving_mean"))
    for copy in job.devices.strategy.experimental_local_results(mean.value):
        np.testing.assert_allclose(copy.numpy(), np.mean(halves, axis=0), rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 50, 359, 400])
def test_every_validation_example_counts_once(batch_size):
    job = build(batch_size=batch_size)
    values = job.loop.evaluate(job.evaluation_batches, job.evaluation_count)
    expected = plain_evaluation(job)
    assert values["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert values["loss"] == pytest.approx(expected["loss"], abs=1e-5)


@functools.cache
def validation_examples():
    """Every validation image and label, decoded one by one, with no pipeline."""
    job = build()
    source = job.splits.validation
    pairs = [
        job.decode_evaluation(source.read(element), element)
        for element in source.in_order().batch(1)
    ]
    return np.concatenate([image for image, _ in pairs]), [int(label[0]) for _, label in pairs]


def plain_evaluation(job):
    """One example at a time, no masks and no metric objects."""
    pixels, labels = validation_examples()
    right, total = [], []
    for logits, label in zip(job.model(pixels.astype(np.float32)).numpy(), labels, strict=True):
        right.append(logits.argmax() == label)
        total.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])
    assert len(right) == 359
    return {"accuracy": np.mean(right), "loss": np.mean(total)}


def test_evaluation_counts_once_when_mirrored_too():
    job = build("--batch_size=50", **MIRRORED)
    values = job.loop.evaluate(job.evaluation_batches, job.evaluation_count)
    assert values["accuracy"] == pytest.approx(plain_evaluation(job)["accuracy"], abs=1e-6)


def test_averaged_weights_are_the_moving_average_and_are_used_to_evaluate():
    job = build("--ema=0.5", batch_size=32)
    kernel = job.model.trainable_variables[0]
    iterator = iter(job.loop.distribute(job.training_batches()))
    expected = kernel.numpy()
    for _ in range(3):
        job.loop.train(iterator, 1)
        expected = 0.5 * expected + 0.5 * kernel.numpy()
    np.testing.assert_allclose(job.loop.ema[0].numpy(), expected, atol=1e-6)
    before = kernel.numpy()
    averaged = job.loop.evaluate(job.evaluation_batches, job.evaluation_count)
    np.testing.assert_array_equal(kernel.numpy(), before)
    for variable, average in zip(job.loop._averaged, job.loop.ema, strict=True):
        variable.assign(average.numpy())
    assert averaged["loss"] == pytest.approx(plain_evaluation(job)["loss"], abs=1e-5)


def test_mixup_and_smoothing_reach_the_targets_and_not_the_validation():
    asked = parse(Settings, ["--data=digits", "--mixup=1.0", "--label_smoothing=0.2"])
    asked = dataclasses.replace(task.fill_in(asked, False), augment="none")
    features, labels = tf.zeros([4, 16, 16, 3], tf.uint8), tf.constant([0, 1, 2, 3], tf.int64)
    index = tf.range(4, dtype=tf.int64)
    _, targets = task.prepare_training(features, labels, index, asked, 10)
    np.testing.assert_allclose(tf.reduce_sum(targets, 1), 1.0, atol=1e-6)
    assert float(tf.reduce_min(targets)) == pytest.approx(0.02)
    assert 2 <= int(tf.reduce_sum(tf.cast(targets > 0.03, tf.int32))) <= 8
    _, plain = task.prepare_evaluation(features, labels, 10)
    np.testing.assert_array_equal(plain, np.eye(10)[:4])


def test_stock_keras_callbacks_work(train, tmp_path, monkeypatch):
    log = tmp_path / "log.csv"
    stopper = keras.callbacks.EarlyStopping("val_loss", patience=0, mode="max")
    monkeypatch.setattr(
        task, "make_callbacks", lambda settings: [keras.callbacks.CSVLogger(str(log)), stopper]
    )
    code, run_dir = train(steps=60, evaluate_steps=10, strategy="one_device")
    assert code == 0
    # The loss falls, which this stopper takes for no progress: it stops at the second evaluation.
    assert [row["step"] for row in rows(run_dir, "val_loss")] == [10, 20]
    assert "stopped_by_callback" in (run_dir / "result.json").read_text()
    assert log.read_text().startswith("epoch,val_accuracy,val_loss")


def test_a_loss_that_is_not_finite_names_its_step_and_the_last_good_checkpoint(train, capsys):
    code, run_dir = train(
        steps=200, evaluate_steps=5, learning_rate=1e30, strategy="one_device", warmup=0.0
    )
    assert code == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "at step" in error and "last good checkpoint" in error
    assert "nan_loss" in (run_dir / "result.json").read_text()


def test_the_pace_fits_a_call_into_its_time(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 10.05, 11.0, 11.2, 12.0, 12.8])
    monkeypatch.setattr(loops.time, "perf_counter", lambda: next(clock))
    pace = loops.CallPace(0)
    steps = []
    for _ in range(4):  # 9 s of compiling, then 50 ms a step
        steps.append(pace.take(100))
        with pace:
            pass
    assert steps == [1, 1, 4, 4]
    assert pace.steps == 1


def test_a_call_cut_short_does_not_make_the_next_one_too_long(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 10.05, 11.0, 11.05, 12.0, 12.2])
    monkeypatch.setattr(loops.time, "perf_counter", lambda: next(clock))
    pace = loops.CallPace(0)
    taken = []
    for left in (1, 9, 1, 9):  # 50 ms a step, of which one is left in the third call
        taken.append(pace.take(left))
        with pace:
            pass
    assert taken == [1, 1, 1, 4] and pace.steps == 4
    assert loops.CallPace(13).steps == 13


def test_gradients_flow_through_a_jitted_step_under_every_precision():
    for precision in ("mixed_float16", "mixed_bfloat16"):
        job = build(f"--precision={precision}", "--jit=on")
        iterator = iter(job.loop.distribute(job.training_batches()))
        got = functools.reduce(lambda _, n: job.loop.train(iterator, n), [10, 10, 10], None)
        assert np.isfinite(got).all()
        assert got.mean() < 2.31


def test_every_named_backbone_is_known():
    assert {"resnet50", "resnet50v2", "efficientnetv2s", "convnexttiny", "mobilenetv3large"} <= set(
        model.BACKBONES
    )
