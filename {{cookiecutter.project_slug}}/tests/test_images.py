"""Images: crops, flips and mixes do what they say, on host and device alike."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import noise_jpeg

from {{cookiecutter.package_name}}.data import images

INDICES = tf.range(4000, dtype=tf.int64)


def bilinear_crop(image, box, size):
    """A crop in plain numpy: `box` is top, left, height, width in parts of the image."""

    def places(begin, extent, pixels):
        centres = np.clip((begin + (np.arange(size) + 0.5) / size * extent) * pixels - 0.5, 0, None)
        lower = np.minimum(np.floor(centres).astype(int), pixels - 1)
        return lower, np.minimum(lower + 1, pixels - 1), centres - lower

    top, bottom, down = places(box[0], box[2], image.shape[0])
    left, right, across = places(box[1], box[3], image.shape[1])
    down, across = down[:, None, None], across[None, :, None]
    upper = image[top][:, left] * (1 - across) + image[top][:, right] * across
    lower = image[bottom][:, left] * (1 - across) + image[bottom][:, right] * across
    return upper * (1 - down) + lower * down


def test_random_numbers_are_uniform_independent_and_repeatable():
    draws = images.uniform(1, INDICES, 8).numpy()
    assert draws.min() >= 0 and draws.max() < 1
    counts, _ = np.histogram(draws, bins=64)
    expected = draws.size / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 30 < chi_square < 110  # 63 degrees of freedom: 0.01 % to 99.98 %
    correlations = np.corrcoef(draws.T)[np.triu_indices(8, 1)]
    assert np.abs(correlations).max() < 0.08  # 5 standard errors of 1/sqrt(4000)
    assert np.abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.08
    alone = images.uniform(1, tf.constant(17, tf.int64), 8).numpy()
    np.testing.assert_array_equal(alone, draws[17])
    assert not np.array_equal(images.uniform(2, INDICES, 8).numpy(), draws)
    assert not np.array_equal(images.uniform(1, INDICES, 8, stream=1).numpy(), draws)
    far = images.uniform(1, INDICES + 2**32, 8).numpy()
    assert not np.array_equal(far, draws)


def test_random_boxes_follow_the_distribution_asked_for():
    asked = images.Augmentation(area=(0.25, 0.75), aspect_ratio=(0.5, 2.0))
    aspect = tf.fill([4000], 4 / 3)
    top, left, height, width = images.random_boxes(0, INDICES, aspect, asked).numpy().T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= 1 + 1e-6).all() and (left + width <= 1 + 1e-6).all()
    area, ratio = height * width, width * 4 / 3 / height
    assert area.min() > 0.2499 and area.max() < 0.7501
    assert ratio.min() > 0.4999 and ratio.max() < 2.001
    # A box that would not fit is drawn again, so large areas and far ratios are rarer.
    assert 0.44 < area.mean() < 0.51
    centre = (left + width / 2).mean()
    assert abs(centre - 0.5) < 0.02


def test_the_whole_image_is_taken_when_no_box_fits():
    impossible = images.Augmentation(area=(1.0, 1.0), aspect_ratio=(3.0, 3.0))
    box = images.random_boxes(0, INDICES[:5], tf.ones([5]), impossible).numpy()
    np.testing.assert_allclose(box, [[0, 0, 1, 1]] * 5)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_a_random_crop_is_that_part_of_the_image(kind):
    pixels = tf.io.decode_jpeg(noise_jpeg(300, 400, 3))
    encoded = tf.io.encode_jpeg(pixels, quality=100) if kind == "jpeg" else tf.io.encode_png(pixels)
    index, asked = tf.constant(5, tf.int64), images.Augmentation(area=(0.3, 0.6))
    crop = images.random_crop(encoded, 1, index, 32, asked)
    assert crop.shape == (32, 32, 3) and crop.dtype == tf.uint8
    box = images.random_boxes(1, index, tf.constant(400 / 300), asked).numpy()
    expected = bilinear_crop(pixels.numpy(), box, 32)
    assert np.abs(crop.numpy() - expected).mean() < 4  # the window is rounded to whole pixels
    other = images.random_crop(encoded, 1, index + 1, 32, asked)
    assert np.abs(crop.numpy().astype(int) - other.numpy()).mean() > 10


def test_training_decodes_inside_the_crop_only():
    def crop(encoded):
        return images.random_crop(encoded, 0, tf.constant(0, tf.int64), 32, images.Augmentation())

    graph = tf.function(crop).get_concrete_function(tf.TensorSpec([], tf.string)).graph
    names = {node.op for node in graph.as_graph_def().node}
    for function in graph.as_graph_def().library.function:
        names |= {node.op for node in function.node_def}
    assert "DecodeAndCropJpeg" in names and "DecodeJpeg" not in names


def test_the_centre_crop_keeps_the_middle_of_any_shape():
    stripes = np.zeros((80, 160, 3), np.uint8)
    stripes[:, 40:120] = 200
    crop = images.centre_crop(tf.io.encode_png(stripes), 16, part=1.0).numpy()
    assert (crop == 200).all()
    tall = images.centre_crop(tf.io.encode_png(np.swapaxes(stripes, 0, 1)), 16, part=1.0).numpy()
    assert (tall == 200).all()
    grey = images.centre_crop(tf.io.encode_png(stripes[..., :1]), 16)
    assert grey.shape == (16, 16, 3)


@pytest.mark.parametrize("jit", [False, True])
def test_the_device_crop_equals_a_plain_bilinear_crop(jit):
    pixels = tf.cast(tf.io.decode_jpeg(noise_jpeg(64, 64, 1)), tf.float32)
    batch = tf.stack([pixels, tf.reverse(pixels, [0])])
    boxes = tf.constant([[0.1, 0.2, 0.5, 0.6], [0.0, 0.3, 0.9, 0.7]])
    crop = tf.function(images.crop_and_flip, jit_compile=jit)
    result = crop(batch, boxes, tf.constant([False, True]), 24).numpy()
    assert result.dtype == np.float32 and result.shape == (2, 24, 24, 3)
    for i, (top, left, height, width) in enumerate(boxes.numpy()):
        expected = bilinear_crop(batch[i].numpy(), (top, left, height, width), 24)
        if i == 1:
            expected = expected[:, ::-1]
        np.testing.assert_allclose(result[i], expected, atol=0.01)


def test_host_and_device_crop_the_same_part():
    encoded, index = tf.constant(noise_jpeg(300, 400, 9)), tf.constant(3, tf.int64)
    asked = images.Augmentation(area=(0.3, 0.8))
    host = images.random_crop(encoded, 4, index, 64, asked).numpy()
    stored, aspect = images.whole(encoded, 73)
    boxes = images.random_boxes(4, index[tf.newaxis], aspect[tf.newaxis], asked)
    device = images.crop_and_flip(stored[tf.newaxis], boxes, tf.constant([False]), 64)[0].numpy()
    assert np.abs(host - device).mean() < 8
    assert np.corrcoef(host.ravel(), device.ravel())[0, 1] > 0.95


def test_flip_mirrors_the_named_images_alone():
    batch = tf.reshape(tf.range(2 * 2 * 3 * 1), [2, 2, 3, 1])
    flipped = images.flip(batch, tf.constant([True, False])).numpy()
    np.testing.assert_array_equal(flipped[0], batch.numpy()[0, :, ::-1])
    np.testing.assert_array_equal(flipped[1], batch.numpy()[1])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_mixup_weights_are_beta_distributed(alpha):
    weights = images.mixup_weights(0, INDICES, alpha).numpy()
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(weights.mean() - 0.5) < 0.03
    assert abs(weights.var() / variance - 1) < 0.08


def test_mix_blends_each_example_with_its_mirror_in_the_batch():
    values = tf.constant([[0.0], [10.0], [20.0], [30.0]])
    mixed = images.mix(values, tf.constant([1.0, 0.5, 0.25, 0.0])).numpy()
    np.testing.assert_allclose(mixed[:, 0], [0, 15, 12.5, 0])
