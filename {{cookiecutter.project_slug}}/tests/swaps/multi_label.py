"""YOURS: what is learned. For a new problem edit this file, and no other.

As it stands: which digits does an image of two show? `training.py` calls the functions below in the
order in which they stand here.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .data import images, views
from .data.arrays import open_arrays
from .data.augmentation import Augmentation
from .data.digits import load_digits
from .data.sources import Record, Splits
from .model import build_model
from .settings import Settings

METRIC = "all_right"  # part of the validation images of which every label is right
HIGHER_IS_BETTER = True


def fill_in(settings: Settings, on_gpu: bool) -> Settings:
    """Replaces the settings that are left to the data set by values that suit it."""
    model, size = "small_convnet", 16
    return settings.filled(model=model, image_size=size, batch_size=32, learning_rate=3e-3)


def open_splits(settings: Settings) -> Splits:
    """Pairs of the embedded digits, side by side in a square; `shown` is 1 for those in it."""
    digits, labels = load_digits()
    other = np.random.default_rng(0).permutation(len(digits))
    pairs = np.pad(np.concatenate([digits, digits[other]], axis=2), [(0, 0), (4, 4), (0, 0)])
    encoded = tf.stack([tf.io.encode_png(pair[..., np.newaxis]) for pair in pairs])
    shown = np.maximum(np.eye(10)[labels], np.eye(10)[labels[other]]).astype(np.float32)
    names = [str(digit) for digit in range(10)]
    return open_arrays("pairs of digits", {"image": encoded, "shown": shown}, names)


def variation(settings: Settings) -> Augmentation:
    """How training images are varied, and how much of one evaluation sees."""
    return Augmentation((0.8, 1.0), (0.9, 1.1), flip=False, stored=0, centre=1.0)


def decode_training(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[Any, tf.Tensor]:
    """On the host, for a batch of records: (features, labels)."""
    features = views.training_view(records, index, settings, variation(settings))
    return features, records["shown"]


def decode_evaluation(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for a batch of the validation split: (features, labels)."""
    features = views.evaluation_view(records, settings, variation(settings))
    return features, records["shown"]


def decode_whole(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes all of every record, for --bad_records=skip: no crop of a good one can fail later."""
    return images.whole_sizes(records), records["shown"]


def prepare_training(
    features: Any, labels: tf.Tensor, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's batch: (model inputs, targets)."""
    inputs = views.vary(features, index, settings, variation(settings))
    inputs, targets = views.mix(inputs, labels, index, settings)
    smoothing = settings.label_smoothing
    return inputs, targets * (1.0 - smoothing) + smoothing / 2


def prepare_evaluation(
    features: tf.Tensor, labels: tf.Tensor, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's validation batch: (model inputs, targets)."""
    return tf.cast(features, tf.float32), labels


def make_model(settings: Settings, classes: int, precision: str) -> keras.Model:
    """The model: inputs -> float32 logits [batch, classes]."""
    size, dropout = settings.image_size, settings.dropout
    return build_model(settings.model, classes, size, precision, dropout, settings.seed)


def loss(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """What training lowers: the mean cross-entropy of the labels, float32 [batch]."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, outputs), axis=-1)


def make_metrics() -> list[keras.metrics.Metric]:
    """What validation reports, each as val_NAME; METRIC is the name of one of them."""

    def all_right(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.reduce_all((outputs > 0) == (targets > 0), axis=-1), tf.float32)

    return [keras.metrics.MeanMetricWrapper(all_right, name=METRIC)]


def make_callbacks(settings: Settings) -> list[keras.callbacks.Callback]:
    """Keras callbacks to run beside the training; a batch, to them, is one call of the loop."""
    return []
