"""`digits`: 1,797 handwritten digits of 8x8 pixels, embedded, so that a first run needs no network.

They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak,
1998, UCI Machine Learning Repository, doi 10.24432/C50P49, CC BY 4.0), as scikit-learn ships it,
with the pixel values 0..16 spread over 0..255.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from .indexed import Indexed
from .sources import Record, Splits

SIDE = 8  # pixels
VALIDATION_EVERY = 5  # every fifth digit validates: each writer's digits are in both splits


def open_digits() -> Splits:
    """The embedded digits: 1,438 to train, 359 to validate, always the same ones."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"].astype(np.int64)
    held = np.arange(len(images)) % VALIDATION_EVERY == VALIDATION_EVERY - 1
    return Splits(
        train=_source(images[~held], labels[~held]),
        validation=_source(images[held], labels[held]),
        classes=tuple(str(digit) for digit in range(10)),
    )


def _source(images: np.ndarray, labels: np.ndarray) -> Indexed:
    # As PNG, so that digits take the same road as any photo.
    encoded = tf.stack([tf.io.encode_png(image[..., np.newaxis]) for image in images])
    numbers = tf.constant(labels)

    def read(indices: tf.Tensor) -> Record:
        return {
            "image": tf.gather(encoded, indices),
            "label": tf.gather(numbers, indices),
            "source_file": tf.fill(tf.shape(indices), "digits"),
            "source_index": indices,
        }

    return Indexed(len(labels), read)
