"""YOURS: what is learned. For a new problem edit this file, and no other.

As it stands: by how many degrees is a digit turned? `training.py` calls the functions below in the
order in which they stand here.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from .data import images, views
from .data.arrays import open_arrays
from .data.augmentation import Augmentation
from .data.digits import load_digits
from .data.sources import Record, Splits
from .model import build_model
from .settings import Settings

METRIC = "degrees"  # off in the mean, of the validation: chooses the best checkpoint
HIGHER_IS_BETTER = False
MOST = 45.0  # degrees


def fill_in(settings: Settings, on_gpu: bool) -> Settings:
    """Replaces the settings that are left to the data set by values that suit it."""
    model, size = "small_convnet", 24
    return settings.filled(model=model, image_size=size, batch_size=32, learning_rate=3e-3)


def open_splits(settings: Settings) -> Splits:
    """The embedded digits, each turned four times by an angle of its own, float32 [1]."""
    digits = np.tile(load_digits()[0][:1795], [4, 1, 1])  # a multiple of five: each in one split
    angles = np.random.default_rng(0).uniform(-MOST, MOST, [len(digits), 1])
    turned = [
        np.asarray(Image.fromarray(digit).resize((24, 24)).rotate(angle, Image.BILINEAR))
        for digit, (angle,) in zip(digits, angles, strict=True)
    ]
    encoded = tf.stack([tf.io.encode_png(image[..., np.newaxis]) for image in turned])
    return open_arrays("turned digits", {"image": encoded, "angle": angles.astype(np.float32)})


def variation(settings: Settings) -> Augmentation:
    """How training images are varied, and how much of one evaluation sees."""
    return Augmentation((0.9, 1.0), (1.0, 1.0), flip=False, stored=0, centre=1.0)


def decode_training(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[Any, tf.Tensor]:
    """On the host, for a batch of records: (features, labels)."""
    features = views.training_view(records, index, settings, variation(settings))
    return features, records["angle"]


def decode_evaluation(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for a batch of the validation split: (features, labels)."""
    features = views.evaluation_view(records, settings, variation(settings))
    return features, records["angle"]


def decode_whole(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes all of every record, for --bad_records=skip: no crop of a good one can fail later."""
    return images.whole_sizes(records), records["angle"]


def prepare_training(
    features: Any, labels: tf.Tensor, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's batch: (model inputs, targets)."""
    inputs = views.vary(features, index, settings, variation(settings))
    return views.mix(inputs, labels, index, settings)


def prepare_evaluation(
    features: tf.Tensor, labels: tf.Tensor, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's validation batch: (model inputs, targets)."""
    return tf.cast(features, tf.float32), labels


def make_model(settings: Settings, classes: int, precision: str) -> keras.Model:
    """The model: inputs -> float32 angles in parts of MOST, [batch, 1]."""
    size, dropout = settings.image_size, settings.dropout
    return build_model(settings.model, 1, size, precision, dropout, settings.seed)


def loss(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """What training lowers: the squared error, float32 [batch]."""
    return tf.reduce_mean(tf.square(targets / MOST - outputs), axis=-1)


def make_metrics() -> list[keras.metrics.Metric]:
    """What validation reports, each as val_NAME; METRIC is the name of one of them."""

    def degrees(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.abs(targets - MOST * outputs), axis=-1)

    return [keras.metrics.MeanMetricWrapper(degrees, name=METRIC)]


def make_callbacks(settings: Settings) -> list[keras.callbacks.Callback]:
    """Keras callbacks to run beside the training; a batch, to them, is one call of the loop."""
    return []
