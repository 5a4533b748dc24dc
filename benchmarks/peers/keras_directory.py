"""`keras.utils.image_dataset_from_directory`, as Keras's guide to image classification uses it."""

import os
from collections.abc import Iterator
from typing import Any

LOADED = 256 / 224  # how much larger than the crop an image is loaded, the custom since AlexNet


def batches(
    directory: str, batch_size: int, image_size: int, augment: bool
) -> Iterator[tuple[Any, int]]:
    """Float32 batches of whole images, squeezed; with `augment`, crops and flips in the pipeline.

    The crop is `RandomCrop` of a fixed size, one place for a batch: less work than the random
    resized crops of the other contenders.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    side = round(image_size * LOADED) if augment else image_size
    dataset = keras.utils.image_dataset_from_directory(
        directory, image_size=(side, side), batch_size=batch_size, shuffle=True, seed=0
    )
    if augment:
        layers = keras.Sequential(
            [keras.layers.RandomCrop(image_size, image_size), keras.layers.RandomFlip("horizontal")]
        )
        dataset = dataset.map(
            lambda images, labels: (layers(images, training=True), labels),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    # Endless, so that no window has an epoch's pause in it.
    for images, _ in dataset.repeat().prefetch(tf.data.AUTOTUNE):
        yield images, len(images)
