"""YOURS: what is learned. For a new problem edit this file, and no other.

As it stands: which class does an image belong to? `training.py` calls the functions below in the
order in which they stand here.
"""

import dataclasses

import keras
import tensorflow as tf

from .data import images
from .data.catalog import open_data
from .data.sources import Record, Splits
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
    return dataclasses.replace(
        settings,
        model=model if settings.model == "auto" else settings.model,
        image_size=settings.image_size or size,
        batch_size=settings.batch_size or batch,
        learning_rate=settings.learning_rate or rate,
    )


def open_splits(settings: Settings) -> Splits:
    """The training and validation records, and the names of the classes."""
    return open_data(settings.data, settings.cache_dir, settings.shuffle_memory)


def augmentation(settings: Settings) -> images.Augmentation:
    """How training images are varied."""
    if settings.data == "digits":  # a mirrored digit is none, and half of one is another
        return images.Augmentation(area=(0.7, 1.0), aspect_ratio=(0.9, 1.1), flip=False)
    return images.Augmentation()


def decode_training(
    record: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for one record: (features, label). Decodes, and crops unless the device does."""
    size = settings.image_size
    if settings.augment == "host":
        varied = augmentation(settings)
        image = images.random_crop(record["image"], settings.seed, index, size, varied)
    elif settings.augment == "device":
        stored = round(size / images.CENTRE)
        image, aspect = images.whole(record["image"], stored)
        return (image, aspect), _label(record, classes)
    else:
        image = images.centre_crop(record["image"], size)
    return image, _label(record, classes)


def decode_evaluation(
    record: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for one record of the validation split: (features, label)."""
    del index  # nothing is random here
    part = 1.0 if settings.data == "digits" else images.CENTRE
    image = images.centre_crop(record["image"], settings.image_size, part)
    return image, _label(record, classes)


def _label(record: Record, classes: int) -> tf.Tensor:
    label = record["label"]  # out of range it would be no class at all, and cost nothing to miss
    in_range = tf.logical_and(label >= 0, label < classes)
    tf.debugging.Assert(in_range, ["label", label, "is none of the classes 0 to", classes - 1])
    return label


def prepare_training(
    features: tf.Tensor, labels: tf.Tensor, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's batch: (model inputs, targets). Crops, flips and mixes."""
    varied = augmentation(settings)
    flipped = images.uniform(settings.seed, index, 1, stream=2)[:, 0] < 0.5 * varied.flip
    if settings.augment == "device":
        stored, aspect = features
        boxes = images.random_boxes(settings.seed, index, aspect, varied)
        inputs = images.crop_and_flip(stored, boxes, flipped, settings.image_size)
    elif settings.augment == "host":
        inputs = images.flip(tf.cast(features, tf.float32), flipped)
    else:
        inputs = tf.cast(features, tf.float32)
    targets = tf.one_hot(labels, classes)
    if settings.mixup:
        weights = images.mixup_weights(settings.seed, index, settings.mixup)
        inputs, targets = images.mix(inputs, weights), images.mix(targets, weights)
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
    del settings
    return []
