"""Augmentation: drawn from what was asked for, the same on host and device, compiled or not."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from conftest import bilinear_crop, noise_jpeg, rows

from {{cookiecutter.package_name}} import task
from {{cookiecutter.package_name}}.command_line import parse
from {{cookiecutter.package_name}}.data import augmentation
from {{cookiecutter.package_name}}.data.photos import photo
from {{cookiecutter.package_name}}.settings import Settings

INDICES = tf.range(4000, dtype=tf.int64)
EVERYTHING = ("--colour_jitter=0.4", "--mixup=0.2", "--cutmix=1.0")


def settings_of(augment, *flags, size=64):
    return parse(
        Settings, ["--data=synthetic", f"--augment={augment}", f"--image_size={size}", *flags]
    )


def augmented(encoded, index, settings):
    """One batch as the model gets it: the host's part of the task, then the device's."""

    @tf.function
    def both(images, index):
        records = {"image": images, "label": index % 2}
        features, labels = task.decode_training(records, index, settings, 2)
        return task.prepare_training(features, labels, index, settings, 2)[0]

    return both(tf.constant(encoded), tf.constant(index, tf.int64)).numpy()


def coordinates_jpeg(height, width):
    """An image that says where it is: red grows from left to right, green from top to bottom."""
    red = np.broadcast_to((np.arange(width) + 0.5) / width, (height, width))
    green = np.broadcast_to((np.arange(height) + 0.5) / height, (width, height)).T
    pixels = np.stack([red, green, np.full_like(red, 0.5)], axis=-1) * 255
    pixels = pixels.round().astype(np.uint8)
    return tf.io.encode_jpeg(pixels, quality=100, chroma_downsampling=False).numpy()


def boxes_read_from(crops):
    """The box each crop of a `coordinates_jpeg` shows, and whether it is mirrored."""
    size = crops.shape[1]
    inner = slice(size // 8, -size // 8)  # at the borders interpolation repeats the last pixel
    place = ((np.arange(size) + 0.5) / size)[inner]
    across = np.polyfit(place, crops[:, :, inner, 0].mean(1).T / 255, 1)  # slope, intercept
    down = np.polyfit(place, crops[:, inner, :, 1].mean(2).T / 255, 1)
    flipped = across[0] < 0
    left = across[1] + np.minimum(across[0], 0)
    return np.stack([down[1], left, down[0], np.abs(across[0])], axis=1), flipped


def figures(boxes):
    """What crops are judged by, each [n]: centre down, centre across, area, height / width."""
    top, left, height, width = boxes.T
    return top + height / 2, left + width / 2, height * width, height / width


def kolmogorov_smirnov(first, second):
    """The largest gap between two samples' distributions, in parts of the 0.1 % limit."""
    places = np.concatenate([first, second])
    parts = (np.searchsorted(np.sort(s), places, "right") / len(s) for s in (first, second))
    gap = np.abs(np.subtract(*parts)).max()
    return gap / (1.95 * np.sqrt(1 / len(first) + 1 / len(second)))


def test_random_numbers_are_uniform_independent_and_repeatable():
    draws = augmentation.uniform(1, INDICES, 8).numpy()
    assert draws.min() >= 0 and draws.max() < 1
    counts, _ = np.histogram(draws, bins=64)
    expected = draws.size / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 30 < chi_square < 110  # 63 degrees of freedom: 0.01 % to 99.98 %
    correlations = np.corrcoef(draws.T)[np.triu_indices(8, 1)]
    assert np.abs(correlations).max() < 0.08  # 5 standard errors of 1/sqrt(4000)
    assert np.abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.08
    alone = augmentation.uniform(1, tf.constant(17, tf.int64), 8).numpy()
    np.testing.assert_array_equal(alone, draws[17])
    assert not np.array_equal(augmentation.uniform(2, INDICES, 8).numpy(), draws)
    far = augmentation.uniform(1, INDICES + 2**32, 8).numpy()
    assert not np.array_equal(far, draws)


def test_streams_and_seeds_do_not_go_together():
    keys = itertools.product((0, 1), range(7))
    draws = np.stack([augmentation.uniform(seed, INDICES, 1, stream) for seed, stream in keys])
    correlations = np.corrcoef(draws[..., 0])[np.triu_indices(14, 1)]
    assert np.abs(correlations).max() < 0.08
    used = [augmentation.CROPS, augmentation.FLIPS, augmentation.MIXUP]
    used += [augmentation.COLOURS, augmentation.CUTMIX, augmentation.CHOICE]
    assert len(set(used)) == 6


def test_random_boxes_follow_the_distribution_asked_for():
    asked = augmentation.Augmentation(area=(0.25, 0.75), aspect_ratio=(0.5, 2.0))
    aspect = tf.fill([4000], 4 / 3)
    top, left, height, width = augmentation.random_boxes(0, INDICES, aspect, asked).numpy().T
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
    impossible = augmentation.Augmentation(area=(1.0, 1.0), aspect_ratio=(3.0, 3.0))
    box = augmentation.random_boxes(0, INDICES[:5], tf.ones([5]), impossible).numpy()
    np.testing.assert_allclose(box, [[0, 0, 1, 1]] * 5)


@pytest.mark.parametrize("jit", [False, True])
def test_the_device_crop_equals_a_plain_bilinear_crop(jit):
    pixels = tf.cast(tf.io.decode_jpeg(noise_jpeg(64, 64, 1)), tf.float32)
    batch = tf.stack([pixels, tf.reverse(pixels, [0])])
    boxes = tf.constant([[0.1, 0.2, 0.5, 0.6], [0.0, 0.3, 0.9, 0.7]])
    crop = tf.function(augmentation.crop_and_flip, jit_compile=jit)
    result = crop(batch, boxes, tf.constant([False, True]), 24).numpy()
    assert result.dtype == np.float32 and result.shape == (2, 24, 24, 3)
    for i, (top, left, height, width) in enumerate(boxes.numpy()):
        expected = bilinear_crop(batch[i].numpy(), (top, left, height, width), 24)
        if i == 1:
            expected = expected[:, ::-1]
        np.testing.assert_allclose(result[i], expected, atol=0.01)


@pytest.mark.parametrize("shape", [(300, 400), (400, 300)])
def test_host_and_device_show_the_same_part_of_every_image(shape):
    index = np.arange(128)
    encoded = [coordinates_jpeg(*shape)] * len(index)
    drawn = augmentation.random_boxes(
        0, index, tf.fill([len(index)], shape[1] / shape[0]), augmentation.Augmentation()
    )
    host, host_flips = boxes_read_from(augmented(encoded, index, settings_of("host")))
    device, device_flips = boxes_read_from(augmented(encoded, index, settings_of("device")))
    np.testing.assert_array_equal(host_flips, device_flips)
    # The host cuts at whole pixels of 300 or 400; uint8 tells 1 of 255 apart.
    np.testing.assert_allclose(host, drawn, atol=0.01)
    np.testing.assert_allclose(device, drawn, atol=0.01)


def test_host_and_device_draw_crops_and_flips_from_one_distribution():
    count = 500
    encoded, index = [coordinates_jpeg(300, 400)] * count, np.arange(count)
    # Other seeds, so that the samples are independent and not each other's copies.
    host, host_flips = boxes_read_from(augmented(encoded, index, settings_of("host", "--seed=1")))
    device, device_flips = boxes_read_from(
        augmented(encoded, index, settings_of("device", "--seed=2"))
    )
    for first, second in zip(figures(host), figures(device), strict=True):
        assert kolmogorov_smirnov(first, second) < 1
    for flips in (host_flips, device_flips):
        assert abs(flips.mean() - 0.5) < 0.075  # 3.3 standard errors
    # The measure is sharp enough to see crops of 20 % of the area up where 8 % was asked for.
    asked = augmentation.Augmentation(area=(0.2, 1.0))
    other = augmentation.random_boxes(3, index, tf.fill([count], 4 / 3), asked).numpy()
    assert kolmogorov_smirnov(figures(host)[2], figures(other)[2]) > 1


def test_host_and_device_crops_of_photos_look_alike():
    encoded = [photo(0, i)[0] for i in range(8)] * 25
    index = np.arange(len(encoded))
    host = augmented(encoded, index, settings_of("host"))
    device = augmented(encoded, index, settings_of("device"))
    assert np.isfinite(host).all() and np.isfinite(device).all()
    assert abs((host - device).mean()) < 0.5  # grey levels, over 2.5 million values
    assert np.abs(host.mean((1, 2, 3)) - device.mean((1, 2, 3))).mean() < 2
    pairs = zip(host.reshape(len(host), -1), device.reshape(len(device), -1), strict=True)
    assert np.median([np.corrcoef(a, b)[0, 1] for a, b in pairs]) > 0.85


def test_nothing_is_random_without_augmentation():
    encoded = [noise_jpeg(90, 120, 5)] * 16
    images = augmented(encoded, np.arange(16), settings_of("none"))
    np.testing.assert_array_equal(images, np.broadcast_to(images[:1], images.shape))


def test_flip_mirrors_the_named_images_alone():
    batch = tf.reshape(tf.range(2 * 2 * 3 * 1), [2, 2, 3, 1])
    flipped = augmentation.flip(batch, tf.constant([True, False])).numpy()
    np.testing.assert_array_equal(flipped[0], batch.numpy()[0, :, ::-1])
    np.testing.assert_array_equal(flipped[1], batch.numpy()[1])


def test_colours_are_blended_with_black_then_mean_grey_then_own_grey():
    images = np.random.default_rng(0).uniform(60, 160, (16, 8, 8, 3)).astype(np.float32)
    result = augmentation.jitter_colours(images, 3, INDICES[:16], 0.2).numpy()
    factors = augmentation.uniform(3, INDICES[:16], 3, augmentation.COLOURS).numpy() * 0.4 + 0.8
    for image, found, (brightness, contrast, saturation) in zip(
        images, result, factors, strict=True
    ):
        image = image * brightness
        mean = (image @ augmentation.LUMA).mean()
        image = contrast * image + (1 - contrast) * mean
        grey = (image @ augmentation.LUMA)[..., None]
        expected = np.clip(saturation * image + (1 - saturation) * grey, 0, 255)
        np.testing.assert_allclose(found, expected, atol=0.01)


@pytest.mark.parametrize("strength", [0.4, 1.0])
def test_brightness_is_uniform_about_one_and_values_stay_pixels(strength):
    grey = tf.fill([4000, 1, 1, 3], 100.0)  # neither contrast nor saturation changes it
    factors = augmentation.jitter_colours(grey, 0, INDICES, strength).numpy()[:, 0, 0, 0] / 100
    expected = np.linspace(1 - strength, 1 + strength, 100_000)
    assert kolmogorov_smirnov(factors, expected) < 1
    extremes = tf.cast(tf.random.stateless_uniform([64, 8, 8, 3], [0, 1]) > 0.5, tf.float32) * 255
    result = augmentation.jitter_colours(extremes, 0, INDICES[:64], strength).numpy()
    assert result.min() >= 0 and result.max() <= 255
    same = augmentation.jitter_colours(extremes, 0, INDICES[:64], 0.0).numpy()
    np.testing.assert_allclose(same, extremes, atol=1e-3)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 2.0, 8.0])
def test_mixup_weights_are_beta_distributed(alpha):
    weights = augmentation.mixup_weights(0, INDICES, alpha).numpy()
    assert weights.min() >= 0 and weights.max() <= 1
    expected = np.random.default_rng(0).beta(alpha, alpha, 100_000)
    # float32 ends at 6e-8 from 1, and with a small alpha many are nearer than that.
    assert kolmogorov_smirnov(weights.ravel().round(5), expected.round(5)) < 1


def test_mix_blends_each_example_with_its_mirror_in_the_batch():
    values = tf.constant([[0.0], [10.0], [20.0], [30.0]])
    mixed = augmentation.mix(values, tf.constant([[1.0], [0.5], [0.25], [0.0]])).numpy()
    np.testing.assert_allclose(mixed[:, 0], [0, 15, 12.5, 0])


def test_cutmix_pastes_one_box_of_the_area_drawn_anywhere():
    size = 64
    kept = augmentation.cutmix_weights(0, INDICES, 1.0, size).numpy()[..., 0]
    assert set(np.unique(kept)) == {0, 1}
    down, across = (kept == 0).any(2), (kept == 0).any(1)
    np.testing.assert_array_equal(kept == 0, down[:, :, None] & across[:, None])
    draws = augmentation.uniform(0, INDICES, 4, augmentation.CUTMIX)
    asked = 1 - augmentation.beta(draws[:, :2], 1.0).numpy()
    pasted = 1 - kept.mean((1, 2))
    assert (pasted < asked + 2 / size).all()
    inner = ~(down[:, [0, -1]].any(1) | across[:, [0, -1]].any(1))
    assert inner.mean() > 0.1
    np.testing.assert_allclose(pasted[inner], asked[inner], atol=2 / size)
    middle = (down * np.arange(size)).sum(1)[inner] / np.maximum(down.sum(1)[inner], 1)
    assert abs(np.median(middle) - size / 2) < 2


@pytest.mark.parametrize("flags", [("--mixup=0.4",), ("--cutmix=1.0",), EVERYTHING[1:]])
def test_targets_are_mixed_as_much_as_the_pixels(flags):
    asked = settings_of("none", *flags, size=32)
    # Images of one value each, their class in it: the mean pixel then tells what it is made of.
    values = tf.range(64.0) % 2 * 200
    images = tf.broadcast_to(values[:, None, None, None], [64, 32, 32, 3])
    labels = tf.range(64, dtype=tf.int64) % 2
    inputs, targets = task.prepare_training(images, labels, INDICES[:64], asked, 2)
    np.testing.assert_allclose(
        np.mean(inputs, axis=(1, 2, 3)) / 200, targets.numpy()[:, 1], atol=1e-4
    )
    assert np.abs(inputs - images).max() > 100


def test_with_mixup_and_cutmix_each_gets_half_of_the_examples():
    kept = augmentation.random_mix(0, INDICES, 1.0, 1.0, 16).numpy()
    pasted = np.isin(kept, (0, 1)).all((1, 2, 3))
    assert abs(pasted.mean() - 0.5) < 0.03  # 4 standard errors
    spread = kept.std((1, 2, 3))
    assert (spread[~pasted] < 1e-6).all()


def test_crops_and_colours_do_not_depend_on_how_a_batch_is_divided():
    encoded = [noise_jpeg(90, 120, seed) for seed in range(8)]
    asked, index = settings_of("device", "--colour_jitter=0.4"), np.arange(8)
    whole = augmented(encoded, index, asked)
    halves = [augmented(encoded[half], index[half], asked) for half in (slice(4), slice(4, 8))]
    np.testing.assert_allclose(whole, np.concatenate(halves), atol=0.01)


@pytest.mark.parametrize("augment", ["host", "device"])
def test_xla_compiles_all_of_it_and_changes_nothing(augment):
    asked, index = settings_of(augment, *EVERYTHING), INDICES[:8]
    side = 73 if augment == "device" else 64
    pixels = tf.random.stateless_uniform([8, side, side, 3], [0, 1], 0, 256, tf.int32)
    images = tf.cast(pixels, tf.uint8)
    features = (images, tf.fill([8], 4 / 3)) if augment == "device" else images

    def prepare(features, index):
        return task.prepare_training(features, index % 2, index, asked, 2)

    plain = tf.function(prepare)(features, index)
    compiled = tf.function(prepare, jit_compile=True)(features, index)
    assert all(t.dtype == tf.float32 for t in (*plain, *compiled))
    np.testing.assert_allclose(compiled[0], plain[0], atol=0.05)
    np.testing.assert_allclose(compiled[1], plain[1], atol=1e-4)  # XLA's powers and cosines


@pytest.mark.parametrize(
    ("precision", "jit", "strategy"),
    [
        pytest.param("float32", "off", "one_device", marks=pytest.mark.slow),
        ("float32", "on", "mirrored"),
        ("mixed_float16", "on", "one_device"),
        ("mixed_float16", "off", "mirrored"),
        ("mixed_bfloat16", "off", "one_device"),
        pytest.param("mixed_bfloat16", "on", "mirrored", marks=pytest.mark.slow),
    ],
)
def test_every_precision_and_strategy_trains_on_everything(train, precision, jit, strategy):
    logical = 2 if strategy == "mirrored" else 0
    code, run_dir = train(
        augment="device", colour_jitter=0.4, mixup=0.2, cutmix=1.0, precision=precision, jit=jit,
        strategy=strategy, logical_devices=logical, steps=3, batch_size=8,
    )  # fmt: skip
    assert code == 0
    losses = [row["loss"] for row in rows(run_dir)]
    assert len(losses) == 3 and np.isfinite(losses).all() and max(losses) < 4
