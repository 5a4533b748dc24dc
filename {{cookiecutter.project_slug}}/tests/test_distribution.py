"""Devices: what is chosen, what is refused, and which precision suits which GPU."""

import pytest
import tensorflow as tf

from {{cookiecutter.package_name}}.command_line import parse
from {{cookiecutter.package_name}}.distribution import (
    Devices,
    batch_warning,
    check_batch,
    choose_devices,
    choose_precision,
)
from {{cookiecutter.package_name}}.errors import UserError
from {{cookiecutter.package_name}}.settings import Settings


def gpus(count=1, capability=(8, 0)):
    names = tuple(f"/device:GPU:{i}" for i in range(count))
    return Devices(tf.distribute.get_strategy(), "GPU", names, capability)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((6, 1), "float32"),
        ((7, 0), "mixed_float16"),
        ((7, 5), "mixed_float16"),
        ((8, 0), "mixed_bfloat16"),
        ((9, 0), "mixed_bfloat16"),
        (None, "float32"),
    ],
)
def test_precision_follows_what_the_gpu_computes_fast(capability, expected):
    precision, reason = choose_precision("auto", gpus(capability=capability))
    assert precision == expected
    assert reason
    assert choose_precision("mixed_float16", gpus())[0] == "mixed_float16"


def test_auto_is_one_device_without_a_scope_on_a_cpu():
    devices = choose_devices(parse(Settings, []))
    assert devices.replicas == 1 and devices.kind == "CPU"
    assert devices.strategy is tf.distribute.get_strategy()


def test_logical_devices_are_mirrored():
    devices = choose_devices(parse(Settings, ["--logical_devices=2"]))
    assert isinstance(devices.strategy, tf.distribute.MirroredStrategy)
    assert devices.replicas == devices.strategy.num_replicas_in_sync == 2


@pytest.mark.parametrize(
    ("batch_size", "replicas", "accumulate", "nearest"),
    [(10, 4, 1, "8 or 12"), (3, 4, 1, "4"), (36, 2, 4, "32 or 40")],
)
def test_a_batch_that_does_not_divide_names_the_nearest(batch_size, replicas, accumulate, nearest):
    with pytest.raises(UserError, match=f"the nearest: {nearest}"):
        check_batch(batch_size, replicas, accumulate)
    check_batch(replicas * accumulate * 3, replicas, accumulate)


def test_a_tiny_batch_for_each_gpu_is_warned_about_with_the_number():
    assert "each GPU gets 2 examples" in batch_warning(8, gpus(4))
    assert batch_warning(256, gpus(4)) is None
