"""YOURS: what is learned. For a new problem edit this file, and no other.

As it stands: which class does an image belong to? `training.py` calls the functions below in the
order in which they stand here.
"""

from typing import Any

import keras
import tensorflow as tf

from .data import images, views
from .data.augmentation import Augmentation
from .data.catalog import open_data
from .data.sources import Record, Splits, checked_labels
from .model import build_model
from .settings import Settings

METRIC = "accuracy"  # of the validation: chooses the best checkpoint
HIGHER_IS_BETTER = True


def fill_in(settings: Settings, on_gpu: bool) -> Settings:
    """Replaces the settings that are left to the data set by values that suit it."""
    if settings.data == "digits":
        model, size, batch, rate = "small_convnet", 16, 32, 3e-3
    elif on_gpu:
        model, size, batch, rate = "resnet50", 224, 128, 1e-3
    else:  # on a CPU ResNet50 takes seconds a step
        model, size, batch, rate = "mobilenetv3small", 224, 32, 1e-3
    return settings.filled(model=model, image_size=size, batch_size=batch, learning_rate=rate)


def open_splits(settings: Settings) -> Splits:
    """The training and validation records, and the names of the classes."""
    tolerant = settings.bad_records == "skip"
    return open_data(settings.data, settings.cache_dir, settings.shuffle_memory, tolerant)


def variation(settings: Settings) -> Augmentation:
    """How training images are varied, and how much of one evaluation sees."""
    if settings.data == "digits":  # a mirrored digit is none, and half of one is another
        return Augmentation((0.7, 1.0), (0.9, 1.1), flip=False, stored=0, centre=1.0)
    return Augmentation()


def decode_training(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[Any, tf.Tensor]:
    """On the host, for a batch of records: (features, labels)."""
    features = views.training_view(records, index, settings, variation(settings))
    return features, checked_labels(records, classes)


def decode_evaluation(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for a batch of the validation split: (features, labels)."""
    features = views.evaluation_view(records, settings, variation(settings))
    return features, checked_labels(records, classes)


def decode_whole(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes all of every record, for --bad_records=skip: no crop of a good one can fail later."""
    return images.whole_sizes(records), checked_labels(records, classes)


def prepare_training(
    features: Any, labels: tf.Tensor, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's batch: (model inputs, targets)."""
    inputs = views.vary(features, index, settings, variation(settings))
    inputs, targets = views.mix(inputs, tf.one_hot(labels, classes), index, settings)
    smoothing = settings.label_smoothing
    return inputs, targets * (1.0 - smoothing) + smoothing / classes


def prepare_evaluation(
    features: tf.Tensor, labels: tf.Tensor, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's validation batch: (model inputs, targets)."""
    return tf.cast(features, tf.float32), tf.one_hot(labels, classes)


def make_model(settings: Settings, classes: int, precision: str) -> keras.Model:
    """The model: inputs -> float32 logits [batch, classes]."""
    size, dropout = settings.image_size, settings.dropout
    return build_model(settings.model, classes, size, precision, dropout, settings.seed)


def loss(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """What training lowers: cross-entropy, float32 [batch]."""
    return tf.nn.softmax_cross_entropy_with_logits(targets, outputs)


def make_metrics() -> list[keras.metrics.Metric]:
    """What validation reports, each as val_NAME; METRIC is the name of one of them."""
    return [keras.metrics.CategoricalAccuracy(name=METRIC)]


def make_callbacks(settings: Settings) -> list[keras.callbacks.Callback]:
    """Keras callbacks to run beside the training; a batch, to them, is one call of the loop."""
    return []
