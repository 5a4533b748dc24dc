"""YOURS: what is learned. For a new problem edit this file, and no other.

As it stands: to which part of Keras does a paragraph of its
documentation belong? `training.py` calls the functions below in the
order in which they stand here.
"""

import ast
import re
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .data.arrays import open_arrays, pad_to_bucket
from .data.sources import Record, Splits, checked_labels
from .model import building
from .settings import Settings

METRIC = "accuracy"  # of the validation: chooses the best checkpoint
HIGHER_IS_BETTER = True
PARTS = ("layers", "losses", "metrics", "ops", "optimizers")
WORDS = 4096  # that are told apart
BUCKETS = (16, 32, 64, 128)  # tokens


def fill_in(settings: Settings, on_gpu: bool) -> Settings:
    """Replaces the settings that are left to the data set by values that suit it."""
    return settings.filled(model="bag", batch_size=32, learning_rate=1e-2, augment="none")


def open_splits(settings: Settings) -> Splits:
    """The paragraphs of Keras's docstrings as tokens 1 to WORDS - 1, and the part they are of."""
    rows, labels = [], []
    for label, part in enumerate(PARTS):
        for path in sorted(Path(keras.__file__).parent.glob(f"src/{part}/**/*.py")):
            for paragraph in _paragraphs(path):
                words = re.findall(r"[a-z]+", paragraph.lower())
                rows.append([1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words])
                labels.append(label)
    kept = np.flatnonzero([len(row) >= 5 for row in rows])
    tokens = tf.ragged.constant([rows[number] for number in kept], dtype=tf.int32)
    columns = {"tokens": tokens, "label": np.array(labels)[kept]}
    return open_arrays("docstrings", columns, PARTS)


def _paragraphs(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    return [paragraph for text in texts for paragraph in text.split("\n\n")]


def decode_training(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[Any, tf.Tensor]:
    """On the host, for a batch of records: (features, labels)."""
    return pad_to_bucket(records["tokens"], BUCKETS), checked_labels(records, classes)


def decode_evaluation(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """On the host, for a batch of the validation split: (features, labels)."""
    return pad_to_bucket(records["tokens"], BUCKETS), checked_labels(records, classes)


def decode_whole(
    records: Record, index: tf.Tensor, settings: Settings, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads every record, for --bad_records=skip."""
    return records["tokens"], checked_labels(records, classes)


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
        tokens = keras.Input([None], dtype="int32")
        x = keras.layers.Embedding(WORDS, 64, mask_zero=True)(tokens)
        x = keras.layers.GlobalAveragePooling1D()(x)
        return keras.Model(tokens, keras.layers.Dense(classes, dtype="float32")(x))


def loss(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """What training lowers: cross-entropy, float32 [batch]."""
    return tf.nn.softmax_cross_entropy_with_logits(targets, outputs)


def make_metrics() -> list[keras.metrics.Metric]:
    """What validation reports, each as val_NAME; METRIC is the name of one of them."""
    return [keras.metrics.CategoricalAccuracy(name=METRIC)]


def make_callbacks(settings: Settings) -> list[keras.callbacks.Callback]:
    """Keras callbacks to run beside the training; a batch, to them, is one call of the loop."""
    return []
