"""YOURS: what is learned. For a new problem edit this file, and no other.

As it stands: is a character of Unicode a letter, a mark, a number, punctuation or a symbol, judged
by its other properties? `training.py` calls the functions below in the order in which they stand
here.
"""

import unicodedata
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .data.arrays import open_arrays
from .data.sources import Record, Splits, checked_labels
from .model import building
from .settings import Settings

METRIC = "accuracy"  # of the validation: chooses the best checkpoint
HIGHER_IS_BETTER = True
KINDS = "LMNPS"  # the first letters of Unicode's categories
DIRECTIONS = ("L", "R", "AL", "EN", "ET", "NSM", "ON")
CHARACTERS = 0x3000  # the alphabets; beyond are the ideographs


def fill_in(settings: Settings, on_gpu: bool) -> Settings:
    """Replaces the settings that are left to the data set by values that suit it."""
    return settings.filled(model="mlp", batch_size=64, learning_rate=3e-3, augment="none")


def open_splits(settings: Settings) -> Splits:
    """A row of properties for each character that this Python knows, and which kind it is."""
    characters = [c for c in map(chr, range(CHARACTERS)) if unicodedata.category(c)[0] in KINDS]
    rows = np.array([_properties(c) for c in characters], np.float32)
    labels = np.array([KINDS.index(unicodedata.category(c)[0]) for c in characters])
    return open_arrays("unicode", {"row": rows, "label": labels}, KINDS)


def _properties(c: str) -> list[float]:
    has = (unicodedata.mirrored(c), unicodedata.decomposition(c), unicodedata.combining(c))
    changes = (c.lower() != c, c.upper() != c, unicodedata.numeric(c, -1.0) >= 0)
    direction = (unicodedata.bidirectional(c) == each for each in DIRECTIONS)
    return [ord(c) / CHARACTERS, *map(float, map(bool, (*has, *changes, *direction)))]


def decode_training(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[Any, tf.Tensor]:
    """On the host, for a batch of records: (features, labels)."""
    return records["row"], checked_labels(records, classes)


def decode_evaluation(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for a batch of the validation split: (features, labels)."""
    return records["row"], checked_labels(records, classes)


def decode_whole(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads every record, for --bad_records=skip."""
    return records["row"], checked_labels(records, classes)


def prepare_training(
    features: Any, labels: tf.Tensor, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's batch: (model inputs, targets)."""
    return features, tf.one_hot(labels, classes)


def prepare_evaluation(
    features: tf.Tensor, labels: tf.Tensor, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's validation batch: (model inputs, targets)."""
    return features, tf.one_hot(labels, classes)


def make_model(settings: Settings, classes: int, precision: str) -> keras.Model:
    """The model: inputs -> float32 logits [batch, classes]."""
    with building(precision, settings.seed):
        x = inputs = keras.Input([7 + len(DIRECTIONS)])
        for _ in range(2):
            x = keras.layers.Dense(128, "relu")(x)
        return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def loss(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """What training lowers: cross-entropy, float32 [batch]."""
    return tf.nn.softmax_cross_entropy_with_logits(targets, outputs)


def make_metrics() -> list[keras.metrics.Metric]:
    """What validation reports, each as val_NAME; METRIC is the name of one of them."""
    return [keras.metrics.CategoricalAccuracy(name=METRIC)]


def make_callbacks(settings: Settings) -> list[keras.callbacks.Callback]:
    """Keras callbacks to run beside the training; a batch, to them, is one call of the loop."""
    return []
