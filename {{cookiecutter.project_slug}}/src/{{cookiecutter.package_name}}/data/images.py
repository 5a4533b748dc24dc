"""Images: decoded and cropped one by one on the host, cropped, flipped and mixed in batch on the
device.

Randomness is a function of (seed, index of the example in training): no state to save, the same
crops on any number of replicas, and the same crops whether the host or the device makes them.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

# Part of the shorter side that evaluation keeps: 224 of 256, the custom since AlexNet.
CENTRE = 7 / 8
CANDIDATES = 10  # boxes drawn until one fits, as torchvision's RandomResizedCrop does
MASK32 = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The distribution random crops and flips are drawn from.

    The defaults are those of C. Szegedy et al., "Going Deeper with Convolutions", 2014, section 6.
    """

    area: tuple[float, float] = (0.08, 1.0)  # of the image's area, uniform
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height, log-uniform
    flip: bool = True  # left to right, one time in two


def uniform(seed: int, index: tf.Tensor, draws: int, stream: int = 0) -> tf.Tensor:
    """Random numbers that depend on (seed, index, stream) alone.

    A counter put through MurmurHash3's 32-bit finaliser (A. Appleby, public domain), in int64
    because every device and XLA multiply that. TensorFlow's own stateless generators take one seed
    a call, so that a batch would need a call for each of its examples.

    Args:
      seed: of the run.
      index: int64 of any shape S, which example.
      draws: numbers wanted for each.
      stream: a number for each purpose, so that crops and flips do not go together.

    Returns:
      float32 of shape S + [draws], in [0, 1), with 24 random bits.
    """
    key = _mix(tf.constant(seed & MASK32, tf.int64) ^ tf.constant(stream * 0x9E3779B9, tf.int64))
    low, high = index & MASK32, tf.bitwise.right_shift(index, tf.cast(32, tf.int64))
    example = _mix(_mix(key ^ low) ^ high)
    numbers = tf.range(1, draws + 1, dtype=tf.int64) * 0x85EBCA77 & MASK32
    bits = _mix(_mix(example[..., tf.newaxis] ^ numbers))
    return tf.cast(tf.bitwise.right_shift(bits, tf.cast(8, tf.int64)), tf.float32) * 2.0**-24


def _mix(value: tf.Tensor) -> tf.Tensor:
    def shift(bits: int) -> tf.Tensor:
        return tf.bitwise.right_shift(value, tf.cast(bits, tf.int64))

    value = value & MASK32
    value = (value ^ shift(16)) * 0x85EBCA6B & MASK32
    value = (value ^ shift(13)) * 0xC2B2AE35 & MASK32
    return value ^ shift(16)


def random_boxes(
    seed: int, index: tf.Tensor, aspect: tf.Tensor, augmentation: Augmentation
) -> tf.Tensor:
    """Random crops, in parts of an image's height and width.

    Args:
      seed: of the run.
      index: int64 of shape S, which example.
      aspect: float32 of shape S, each image's width / height.
      augmentation: the distribution.

    Returns:
      float32 of shape S + [4]: top, left, height, width, all within [0, 1].
    """
    draws = uniform(seed, index, 2 * CANDIDATES + 2, stream=1)
    low, high = augmentation.area
    area = low + (high - low) * draws[..., :CANDIDATES]
    low, high = augmentation.aspect_ratio
    log_low, log_high = tf.math.log(low), tf.math.log(high)
    ratio = tf.exp(log_low + (log_high - log_low) * draws[..., CANDIDATES : 2 * CANDIDATES])
    aspect = aspect[..., tf.newaxis]
    heights, widths = tf.sqrt(area * aspect / ratio), tf.sqrt(area * ratio / aspect)
    fits = tf.cast((heights <= 1.0) & (widths <= 1.0), tf.float32)
    # The first candidate that fits; where none does, the whole image.
    first = fits * tf.cast(tf.equal(tf.cumsum(fits, axis=-1), 1.0), tf.float32)
    none = 1.0 - tf.reduce_max(fits, axis=-1)
    height = tf.reduce_sum(first * heights, axis=-1) + none
    width = tf.reduce_sum(first * widths, axis=-1) + none
    top = (1.0 - height) * draws[..., -2]
    left = (1.0 - width) * draws[..., -1]
    return tf.stack([top, left, height, width], axis=-1)


def random_crop(
    encoded: tf.Tensor, seed: int, index: tf.Tensor, size: int, augmentation: Augmentation
) -> tf.Tensor:
    """Decodes a random crop of one image and resizes it: the host's part of `--augment=host`.

    A JPEG is decoded inside the crop only, which costs about half of decoding all of it.

    Args:
      encoded: scalar string, a JPEG or PNG.
      seed: of the run.
      index: scalar int64, which example of training.
      size: side of the result in pixels.
      augmentation: the distribution.

    Returns:
      uint8 of shape [size, size, 3].
    """

    def window(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
        sides = tf.cast(tf.stack([height, width]), tf.float32)
        box = random_boxes(seed, index, sides[1] / sides[0], augmentation)
        extent = tf.maximum(tf.cast(tf.round(box[2:] * sides), tf.int32), 1)
        begin = tf.cast(tf.round(box[:2] * sides), tf.int32)
        begin = tf.minimum(begin, tf.stack([height, width]) - extent)
        return tf.concat([begin, extent], axis=0)

    return _resize(_decode_window(encoded, window), size)


def centre_crop(encoded: tf.Tensor, size: int, part: float = CENTRE) -> tf.Tensor:
    """Decodes the central square of one image and resizes it: what evaluation sees.

    Args:
      encoded: scalar string, a JPEG or PNG.
      size: side of the result in pixels.
      part: of the shorter side, how much to keep.

    Returns:
      uint8 of shape [size, size, 3].
    """

    def window(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
        shorter = tf.cast(tf.minimum(height, width), tf.float32)
        side = tf.maximum(tf.cast(tf.round(part * shorter), tf.int32), 1)
        return tf.stack([(height - side) // 2, (width - side) // 2, side, side])

    return _resize(_decode_window(encoded, window), size)


def whole(encoded: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes all of one image into a square: the host's part of `--augment=device`.

    Args:
      encoded: scalar string, a JPEG or PNG.
      size: side of the result in pixels.

    Returns:
      uint8 of shape [size, size, 3], and the original width / height, a scalar float32.
    """
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    shape = tf.cast(tf.shape(image), tf.float32)
    return _resize(image, size), shape[1] / shape[0]


def crop_and_flip(images: tf.Tensor, boxes: tf.Tensor, flipped: tf.Tensor, size: int) -> tf.Tensor:
    """Crops, resizes and mirrors a batch with two matrix products an image.

    Every row of the two matrices holds the bilinear weights of one output row or column, so there
    is no gather and XLA compiles it; `tf.image.crop_and_resize` it does not.

    Args:
      images: any dtype, shape [batch, height, width, channels].
      boxes: float32 [batch, 4]: top, left, height, width in parts of the image.
      flipped: bool [batch], which to mirror left to right.
      size: side of the result in pixels.

    Returns:
      float32 of shape [batch, size, size, channels].
    """
    height, width = images.shape[1], images.shape[2]
    columns = tf.range(size, dtype=tf.float32)
    across = tf.where(flipped[:, tf.newaxis], size - 1 - columns, columns[tf.newaxis])
    down = tf.broadcast_to(columns, tf.shape(across))
    rows = _bilinear(down, boxes[:, 0], boxes[:, 2], size, height)
    columns = _bilinear(across, boxes[:, 1], boxes[:, 3], size, width)
    images = tf.cast(images, tf.float32)
    narrow = tf.einsum("bow,bhwc->bhoc", columns, images)
    return tf.einsum("boh,bhwc->bowc", rows, narrow)


def flip(images: tf.Tensor, flipped: tf.Tensor) -> tf.Tensor:
    """Mirrors those images of [batch, height, width, channels] that `flipped`, [batch], names."""
    return tf.where(flipped[:, tf.newaxis, tf.newaxis, tf.newaxis], images[:, :, ::-1], images)


def mixup_weights(seed: int, index: tf.Tensor, alpha: float) -> tf.Tensor:
    """Weights drawn from Beta(alpha, alpha), float32 of `index`'s shape [batch].

    Drawn as M. Jöhnk does ("Erzeugung von betaverteilten und gammaverteilten Zufallszahlen",
    Metrika 8, 1964): the first of 16 pairs u^(1/alpha), v^(1/alpha) with a sum of at most 1. It is
    elementwise, so XLA compiles it; TensorFlow's gamma sampler it does not.
    """
    draws = uniform(seed, index, 32, stream=3)
    u, v = draws[..., :16] ** (1.0 / alpha), draws[..., 16:] ** (1.0 / alpha)
    chosen = tf.argmax(tf.cast((u + v <= 1.0) & (u + v > 0.0), tf.int32), axis=-1)
    u, v = tf.gather(u, chosen, batch_dims=1), tf.gather(v, chosen, batch_dims=1)
    return tf.math.divide_no_nan(u, u + v)


def mix(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Each example blended with its mirror in the batch, as H. Zhang et al., "mixup", 2017.

    Args:
      values: float of shape [batch, ...]: inputs or targets.
      weights: float32 [batch], how much of the example itself is kept.
    """
    shape = [-1] + [1] * (values.shape.rank - 1)
    weights = tf.cast(tf.reshape(weights, shape), values.dtype)
    return weights * values + (1 - weights) * values[::-1]


def _bilinear(
    position: tf.Tensor, begin: tf.Tensor, extent: tf.Tensor, size: int, source: int
) -> tf.Tensor:
    """[batch, size, source] weights of source pixels for outputs at `position` [batch, size]."""
    centre = begin[:, tf.newaxis] + extent[:, tf.newaxis] * (position + 0.5) / size
    centre = tf.clip_by_value(centre * source - 0.5, 0.0, source - 1.0)
    pixels = tf.range(source, dtype=tf.float32)
    return tf.maximum(0.0, 1.0 - tf.abs(centre[..., tf.newaxis] - pixels))


def _decode_window(
    encoded: tf.Tensor, window: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Decodes one part of an image: `window(height, width)` -> [top, left, height, width]."""

    def jpeg() -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(encoded)
        return tf.io.decode_and_crop_jpeg(encoded, window(shape[0], shape[1]), channels=3)

    def other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        shape = tf.shape(image)
        top, left, height, width = tf.unstack(window(shape[0], shape[1]))
        return image[top : top + height, left : left + width]

    return tf.cond(tf.io.is_jpeg(encoded), jpeg, other)


def _resize(image: tf.Tensor, size: int) -> tf.Tensor:
    resized = tf.raw_ops.ResizeBilinear(
        images=image[tf.newaxis], size=[size, size], half_pixel_centers=True
    )[0]
    resized.set_shape([size, size, 3])
    # Adding a half and cutting off rounds; no value lies outside 0..255, so nothing is clipped.
    return tf.cast(resized + 0.5, tf.uint8)
