"""`digits`: 1,797 handwritten digits of 8x8 pixels, embedded, so that a first run needs no network.

They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak,
1998, UCI Machine Learning Repository, doi 10.24432/C50P49, CC BY 4.0), as scikit-learn ships it,
with the pixel values 0..16 spread over 0..255.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from .arrays import open_arrays
from .sources import Splits

SIDE = 8  # pixels


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [1797, 8, 8], and labels, int64 [1797]."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"].astype(np.int64)


def open_digits() -> Splits:
    """1,438 to train, 359 to validate, always the same ones; each writer's are in both splits."""
    images, labels = load_digits()
    # As PNG, so that digits take the same road as any photo.
    encoded = tf.stack([tf.io.encode_png(image[..., np.newaxis]) for image in images])
    columns = {"image": encoded, "label": labels}
    return open_arrays("digits", columns, [str(digit) for digit in range(10)])
