"""YOURS: what is learned. For a new problem edit this file, and no other.

As it stands: which class does an image belong to? `training.py` calls the functions below in the
order in which they stand here.
"""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from .data import augmentation, images
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
    tolerant = settings.bad_records == "skip"
    return open_data(settings.data, settings.cache_dir, settings.shuffle_memory, tolerant)


def variation(settings: Settings) -> augmentation.Augmentation:
    """How training images are varied."""
    if settings.data == "digits":  # a mirrored digit is none, and half of one is another
        return augmentation.Augmentation(area=(0.7, 1.0), aspect_ratio=(0.9, 1.1), flip=False)
    return augmentation.Augmentation()


def decode_training(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[Any, tf.Tensor]:
    """On the host, for a batch of records: (features, labels). Crops unless the device does."""
    size, varied = settings.image_size, variation(settings)

    def boxes(aspect: tf.Tensor) -> tf.Tensor:
        return augmentation.random_boxes(settings.seed, index, aspect, varied)

    features: Any
    if settings.augment == "host":
        features = images.crops(records, size, boxes, settings.fused_decode)
    elif settings.augment == "device":
        # As large as `prepare` makes them: crops of smaller squares are smoother than the host's.
        side = round(size / images.CENTRE) if settings.data == "digits" else max(256, 8 * size // 7)
        features = images.squares(records, side, boxes, settings.fused_decode)
    else:
        features = images.crops(records, size, fused=settings.fused_decode)
    return features, _labels(records, classes)


def decode_evaluation(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for a batch of the validation split: (features, labels)."""
    del index  # nothing is random here
    part = 1.0 if settings.data == "digits" else images.CENTRE

    def boxes(aspect: tf.Tensor) -> tf.Tensor:
        return images.centre_boxes(aspect, part)

    return images.crops(records, settings.image_size, boxes), _labels(records, classes)


def decode_whole(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes all of every record, for --bad_records=skip: no crop of a good one can fail later."""
    del index, settings
    return images.whole_sizes(records), _labels(records, classes)


def _labels(records: Record, classes: int) -> tf.Tensor:
    labels = records["label"]  # out of range it would be no class at all, and cost nothing to miss
    in_range = tf.reduce_all((labels >= 0) & (labels < classes))
    message = ["label", labels, "is none of the classes 0 to", classes - 1]
    with tf.control_dependencies([tf.debugging.Assert(in_range, message)]):
        return tf.identity(labels)


def prepare_training(
    features: tf.Tensor, labels: tf.Tensor, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device, for a replica's batch: (model inputs, targets).

    Crops and flips where --augment says so; colours and mixes by their own flags, whatever it says.
    """
    size, seed, varied = settings.image_size, settings.seed, variation(settings)
    if settings.augment == "none":
        inputs = tf.cast(features, tf.float32)
    else:
        flipped = augmentation.random_flips(seed, index, varied)
        if settings.augment == "device":
            stored, aspect = features
            boxes = augmentation.random_boxes(seed, index, aspect, varied)
            inputs = augmentation.crop_and_flip(stored, boxes, flipped, size)
        else:
            inputs = tf.cast(augmentation.flip(features, flipped), tf.float32)
    targets = tf.one_hot(labels, classes)
    if settings.colour_jitter:
        inputs = augmentation.jitter_colours(inputs, seed, index, settings.colour_jitter)
    if settings.mixup or settings.cutmix:
        kept = augmentation.random_mix(seed, index, settings.mixup, settings.cutmix, size)
        inputs = augmentation.mix(inputs, kept)
        targets = augmentation.mix(targets, tf.reduce_mean(kept, axis=(1, 2)))
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
