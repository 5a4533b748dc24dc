"""Synthetic photos are as large, rough and coloured as photos, and their classes can be learnt.

`python tests/test_photos.py` prints what the docstring of `photos` says.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from {{cookiecutter.package_name}}.data import photos

SEED = 2021
MEASURED = 64  # photos
TRAIN, HELD_OUT = 350, 150
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


@pytest.fixture(scope="module")
def drawn() -> list[tuple[bytes, int]]:
    return [photos.photo(SEED, index) for index in range(MEASURED)]


@pytest.fixture(scope="module")
def many() -> list[tuple[bytes, int]]:
    return [photos.photo(SEED, index) for index in range(TRAIN + HELD_OUT)]


@pytest.fixture(scope="module")
def images(drawn: list[tuple[bytes, int]]) -> list[np.ndarray]:
    return [tf.io.decode_jpeg(encoded).numpy() for encoded, _ in drawn]


@pytest.fixture(scope="module")
def labels(many: list[tuple[bytes, int]]) -> np.ndarray:
    return np.array([label for _, label in many])


def test_every_photo_is_a_jpeg_of_500x375_pixels_some_upright(
    drawn: list[tuple[bytes, int]], images: list[np.ndarray]
) -> None:
    assert all(bool(tf.io.is_jpeg(encoded)) for encoded, _ in drawn)
    assert {image.shape for image in images} == {(375, 500, 3), (500, 375, 3)}
    upright = sum(image.shape[0] == 500 for image in images)
    assert 0.1 < upright / MEASURED < 0.4


def test_chroma_is_halved_both_ways_as_cameras_do(drawn: list[tuple[bytes, int]]) -> None:
    encoded = drawn[0][0]
    frame = encoded.index(b"\xff\xc0")  # baseline; byte 11 is the first component's sampling
    assert encoded[frame + 11] == 0x22
    assert encoded[frame + 14] == encoded[frame + 17] == 0x11


def test_photos_are_as_large_as_those_of_imagenet(drawn: list[tuple[bytes, int]]) -> None:
    sizes = np.array([len(encoded) for encoded, _ in drawn])
    assert 90_000 < sizes.mean() < 120_000
    assert sizes.min() > 60_000 and sizes.max() < 160_000


def test_power_falls_with_frequency_as_in_natural_images(images: list[np.ndarray]) -> None:
    assert -2.6 < np.mean([_spectral_slope(image) for image in images]) < -1.6


def test_colours_are_those_of_photos(images: list[np.ndarray]) -> None:
    means = np.array([image.mean((0, 1)) for image in images])
    deviations = np.array([image.std((0, 1)) for image in images])
    # ImageNet's, as everyone normalises by: 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225 of 255.
    np.testing.assert_allclose(means.mean(0), [124, 116, 104], atol=12)
    np.testing.assert_allclose(deviations.mean(0), [58, 57, 57], atol=8)
    some = np.concatenate([image.reshape(-1, 3)[::97] for image in images])
    assert np.corrcoef(some.T).min() > 0.7  # red with blue, the least related


def test_a_photo_is_the_same_in_another_process_and_in_any_order(
    drawn: list[tuple[bytes, int]],
) -> None:
    # "spawn": a forked child of a process that has started TensorFlow hangs in its thread pools.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        elsewhere = list(pool.map(photos.photo, [SEED] * 6, range(5, -1, -1)))
    assert elsewhere[::-1] == drawn[:6]


def test_a_photo_is_the_same_in_threads_that_share_nothing_but_the_bank(
    drawn: list[tuple[bytes, int]],
) -> None:
    photos._bank.cache_clear()
    np.random.seed(1)  # the global state must not matter
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(photos.photo, [SEED] * 12, range(12))) == drawn[:12]


def test_seeds_and_indices_give_different_photos(drawn: list[tuple[bytes, int]]) -> None:
    assert len({encoded for encoded, _ in drawn}) == len(drawn)
    assert photos.photo(SEED + 1, 0)[0] != drawn[0][0]


@pytest.mark.slow
def test_classes_are_balanced(labels: np.ndarray) -> None:
    assert set(np.bincount(labels, minlength=photos.NUM_CLASSES)) == {
        len(labels) // photos.NUM_CLASSES
    }


@pytest.mark.slow
def test_the_mean_colour_does_not_give_the_class_away(
    many: list[tuple[bytes, int]], labels: np.ndarray
) -> None:
    colours = np.array([_eighth(encoded).mean((0, 1)) for encoded, _ in many])
    centroids = np.array([colours[:TRAIN][labels[:TRAIN] == k].mean(0) for k in range(10)])
    distances = np.linalg.norm(colours[TRAIN:, np.newaxis] - centroids, axis=-1)
    assert np.mean(distances.argmin(1) == labels[TRAIN:]) < 0.25


@pytest.mark.slow
def test_texture_gives_the_class_away(many: list[tuple[bytes, int]], labels: np.ndarray) -> None:
    assert _accuracy_from_texture(many, labels) > 0.6


def test_the_bank_of_fields_is_made_once_a_process(drawn: list[tuple[bytes, int]]) -> None:
    misses = photos._bank.cache_info().misses
    photos.photo(SEED, len(drawn))
    assert photos._bank.cache_info().misses == misses


def _eighth(encoded: bytes) -> np.ndarray:
    return tf.io.decode_jpeg(encoded, ratio=8).numpy()


def _spectral_slope(image: np.ndarray) -> float:
    """The exponent k of the luminance's power ~ frequency^k, over 0.01 to 0.4 cycles a pixel."""
    luminance = (image @ LUMINANCE)[:375, :375]
    hann = np.hanning(375)
    windowed = (luminance - luminance.mean()) * hann * hann[:, np.newaxis]
    power = np.abs(np.fft.fft2(windowed)) ** 2
    frequency = np.hypot(np.fft.fftfreq(375)[:, np.newaxis], np.fft.fftfreq(375))
    edges = np.geomspace(0.01, 0.4, 16)
    octave = np.digitize(frequency, edges)
    mean_power = [power[octave == k].mean() for k in range(1, len(edges))]
    return np.polyfit(np.log(edges[1:] * edges[:-1]) / 2, np.log(mean_power), 1)[0]


def _accuracy_from_texture(drawn: list[tuple[bytes, int]], labels: np.ndarray) -> float:
    """Held-out accuracy of a ridge regression on histograms of local orientation."""
    features = np.array([_texture(encoded) for encoded, _ in drawn])
    features = (features - features[:TRAIN].mean(0)) / (features[:TRAIN].std(0) + 1e-6)
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    known, targets = features[:TRAIN], np.eye(photos.NUM_CLASSES)[labels[:TRAIN]]
    weights = np.linalg.solve(known.T @ known + 30 * np.eye(known.shape[1]), known.T @ targets)
    return float(np.mean((features[TRAIN:] @ weights).argmax(1) == labels[TRAIN:]))


def _texture(encoded: bytes) -> np.ndarray:
    image = tf.io.decode_jpeg(encoded, ratio=4).numpy().astype(np.float32)
    luminance = image @ LUMINANCE
    planes = luminance, image[..., 0] - luminance, image[..., 2] - luminance
    return np.concatenate([_orientations(plane) for plane in planes])


def _orientations(plane: np.ndarray) -> np.ndarray:
    """How the gradients' strength is shared among orientations, blind to a left-to-right flip."""

    def blocks(values: np.ndarray) -> np.ndarray:
        rows, columns = (side // 6 for side in values.shape)
        return values[: rows * 6, : columns * 6].reshape(rows, 6, columns, 6).mean((1, 3)).ravel()

    gradient_y, gradient_x = np.gradient(plane)
    xx, yy, xy = blocks(gradient_x**2), blocks(gradient_y**2), blocks(gradient_x * gradient_y)
    energy = xx + yy + 1e-6
    coherence = np.hypot(xx - yy, 2 * xy) / energy
    angle = np.abs(np.arctan2(2 * xy, xx - yy))
    strength = np.sqrt(energy)
    histogram, _, _ = np.histogram2d(
        coherence, angle, bins=(3, 5), range=((0, 1.001), (0, np.pi)), weights=strength
    )
    return np.append((histogram / strength.sum()).ravel(), np.log(strength.mean()))


def print_figures() -> None:
    drawn = [photos.photo(SEED, index) for index in range(MEASURED)]
    images = [tf.io.decode_jpeg(encoded).numpy() for encoded, _ in drawn]
    sizes = [len(encoded) for encoded, _ in drawn]
    slopes = [_spectral_slope(image) for image in images]
    begin = time.perf_counter()
    for encoded, _ in drawn:
        tf.io.decode_jpeg(encoded)
    decoded = MEASURED / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for index in range(MEASURED):
        photos.photo(SEED, index)
    made = MEASURED / (time.perf_counter() - begin)
    print(
        f"\nbytes: mean {np.mean(sizes):,.0f}, {min(sizes):,} to {max(sizes):,}"
        f"\nspectral slope: mean {np.mean(slopes):.2f}, {min(slopes):.2f} to {max(slopes):.2f}"
        f"\nmean: {np.mean([image.mean((0, 1)) for image in images], 0).round(1)}"
        f"\nsigma in a photo: {np.mean([image.std((0, 1)) for image in images], 0).round(1)}"
        f"\ndecoded a second: {decoded:,.0f}; drawn a second: {made:,.0f}"
    )


if __name__ == "__main__":
    print_figures()
