"""The model builder: float32 heads, the right input range, nothing global left behind."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from {{cookiecutter.package_name}} import model
from {{cookiecutter.package_name}}.errors import UserError

PREPROCESSING = {
    "resnet50": keras.applications.resnet.preprocess_input,
    "resnet50v2": keras.applications.resnet_v2.preprocess_input,
    "mobilenetv2": keras.applications.mobilenet_v2.preprocess_input,
    "mobilenetv3small": keras.applications.mobilenet_v3.preprocess_input,
    "efficientnetv2b0": keras.applications.efficientnet_v2.preprocess_input,
    "convnexttiny": keras.applications.convnext.preprocess_input,
}


@pytest.mark.parametrize("precision", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_logits_are_float32_and_the_global_policy_is_untouched(precision):
    built = model.build_model("small_convnet", 7, 16, precision, dropout=0.1)
    logits = built(tf.zeros([2, 16, 16, 3]), training=False)
    assert logits.dtype == tf.float32 and logits.shape == (2, 7)
    assert built.dtype_policy.name == precision
    assert keras.config.dtype_policy().name == "float32"
    convolution = next(
        layer for layer in built._flatten_layers() if isinstance(layer, keras.layers.Conv2D)
    )
    assert convolution.compute_dtype == precision.removeprefix("mixed_")
    assert convolution.variable_dtype == "float32"


@pytest.mark.parametrize("name", PREPROCESSING)
def test_each_family_gets_the_pixels_it_expects(name):
    pixels = np.random.default_rng(0).integers(0, 256, [2, 40, 40, 3]).astype(np.float32)
    built = model.build_model(name, 3, 40)
    backbone = next(layer for layer in built.layers if isinstance(layer, keras.Model))
    before = keras.Model(built.input, built.get_layer(index=_index(built, backbone) - 1).output)
    np.testing.assert_allclose(before(pixels), PREPROCESSING[name](pixels.copy()), atol=1e-4)


def _index(built, layer):
    return [candidate is layer for candidate in built.layers].index(True)


def test_an_unknown_backbone_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"resnet50v2, .*convnexttiny"):
        model.build_model("alexnet", 10, 224)


def test_a_size_too_small_for_the_backbone_is_one_line():
    with pytest.raises(UserError, match="--image_size=8 does not suit --model=resnet50"):
        model.build_model("resnet50", 10, 8)


def test_only_matrices_and_kernels_are_decayed():
    built = model.build_model("small_convnet", 3, 16)
    optimizer = model.build_optimizer(built, model.build_schedule(10, 0.1, 0.1), 0.5, "float32")
    for variable in built.trainable_variables:
        variable.assign(tf.ones(variable.shape))  # decay leaves a bias of 0 at 0
    before = [v.numpy() for v in built.trainable_variables]
    optimizer.iterations.assign(3)
    optimizer.apply([tf.zeros(v.shape) for v in built.trainable_variables])
    for variable, old in zip(built.trainable_variables, before, strict=True):
        changed = not np.array_equal(variable.numpy(), old)
        assert changed == (variable.path.endswith("kernel"))


def test_the_schedule_warms_up_to_the_peak_and_ends_at_zero():
    rates = [float(model.build_schedule(100, 0.4, 0.2)(step)) for step in range(101)]
    assert rates[0] == 0 and abs(rates[20] - 0.4) < 1e-6 and rates[100] < 1e-6
    assert rates.index(max(rates)) == 20
    assert all(a <= b for a, b in itertools.pairwise(rates[:21]))


def test_the_same_seed_gives_the_same_weights():
    first, second, other = (
        model.build_model("small_convnet", 3, 16, seed=seed).get_weights() for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], other[0])
