"""What a model is shown of an image: the host's and the device's part of it, as the flags say."""

from typing import Any

import tensorflow as tf

from ..settings import Settings
from . import augmentation, images
from .augmentation import Augmentation
from .sources import Record


def training_view(
    records: Record, index: tf.Tensor, settings: Settings, varied: Augmentation
) -> Any:
    """On the host: images as `vary` expects them, cropped at random unless the device does that.

    Args:
      records: a batch of images, see `sources.py`.
      index: int64 [batch], the examples' positions in training.
      settings: `augment` says who crops.
      varied: the distribution of the crops.

    Returns:
      uint8 [batch, size, size, 3]; under --augment=device uint8 squares that are larger, and
      float32 [batch], each original's width / height.
    """
    size, fused = settings.image_size, settings.fused_decode

    def boxes(aspect: tf.Tensor) -> tf.Tensor:
        return augmentation.random_boxes(settings.seed, index, aspect, varied)

    if settings.augment == "host":
        return images.crops(records, size, boxes, fused)
    if settings.augment == "device":
        # As large as `prepare` makes them: crops of smaller squares are smoother than the host's.
        return images.squares(records, max(varied.stored, 8 * size // 7), boxes, fused)
    return images.crops(records, size, fused=fused)


def evaluation_view(records: Record, settings: Settings, varied: Augmentation) -> tf.Tensor:
    """On the host: the centre of each image, uint8 [batch, size, size, 3]."""

    def boxes(aspect: tf.Tensor) -> tf.Tensor:
        return images.centre_boxes(aspect, varied.centre)

    return images.crops(records, settings.image_size, boxes)


def vary(features: Any, index: tf.Tensor, settings: Settings, varied: Augmentation) -> tf.Tensor:
    """On the device: crops and flips where --augment says so, colours where --colour_jitter does.

    Args:
      features: what `training_view` gave, a replica's batch of it.
      index: int64 [batch], the examples' positions in training.
      settings: the flags.
      varied: the distribution of crops and flips.

    Returns:
      float32 [batch, size, size, 3], values 0..255.
    """
    size, seed = settings.image_size, settings.seed
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
    if settings.colour_jitter:
        inputs = augmentation.jitter_colours(inputs, seed, index, settings.colour_jitter)
    return inputs


def mix(
    inputs: tf.Tensor, targets: tf.Tensor, index: tf.Tensor, settings: Settings
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the device: mixup and cutmix by their own flags, whatever --augment says.

    Args:
      inputs: float32 [batch, size, size, 3].
      targets: float32 [batch, any]; mixed in the same parts as the inputs.
      index: int64 [batch], the examples' positions in training.
      settings: the flags.

    Returns:
      Both, of the same shapes.
    """
    if not (settings.mixup or settings.cutmix):
        return inputs, targets
    size, seed = settings.image_size, settings.seed
    kept = augmentation.random_mix(seed, index, settings.mixup, settings.cutmix, size)
    mixed = augmentation.mix(inputs, kept)
    return mixed, augmentation.mix(targets, tf.reduce_mean(kept, axis=(1, 2)))
