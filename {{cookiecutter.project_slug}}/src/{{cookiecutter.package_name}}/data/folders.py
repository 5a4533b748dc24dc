"""`folder:DIR`: directories of JPEG and PNG images, one directory a class."""

import tensorflow as tf

from .indexed import Indexed
from .listing import list_folder
from .sources import Record, Splits


def open_folder(path: str) -> Splits:
    """Opens DIR/<class>/* or DIR/train/<class>/* with DIR/validation/<class>/* (or val, test).

    Raises:
      UserError: as `list_folder` does.
    """
    folder = list_folder(path)
    train, validation = (_source(s, folder.classes) for s in (folder.train, folder.validation))
    return Splits(train, validation, folder.classes)


def _source(images: list[tuple[str, str]], classes: tuple[str, ...]) -> Indexed:
    number = {name: label for label, name in enumerate(classes)}
    paths = tf.constant([path for _, path in images])
    labels = tf.constant([number[name] for name, _ in images], tf.int64)

    def load(index: tf.Tensor) -> tf.Tensor:
        return tf.io.read_file(tf.gather(paths, index))

    def read(indices: tf.Tensor, images: tf.Tensor) -> Record:
        return {
            "image": images,
            "label": tf.gather(labels, indices),
            "source_file": tf.gather(paths, indices),
            "source_index": tf.fill(tf.shape(indices), tf.constant(-1, tf.int64)),  # file = record
        }

    return Indexed(len(images), read, load, names=[path for _, path in images])
