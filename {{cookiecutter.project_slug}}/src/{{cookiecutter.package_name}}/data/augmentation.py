"""Augmentation drawn from (seed, index), made in batch on the device: crops, flips, colours, mixes.

Randomness is a function of (seed, index of the example in training): no state to save, the same
crops on any number of replicas, and the same crops whether the host or the device makes them.
Everything here is in float32 under every precision, has static shapes and compiles under XLA.
"""

import dataclasses
import math

import tensorflow as tf

CANDIDATES = 10  # boxes drawn until one fits, as torchvision's RandomResizedCrop does
MASK32 = 0xFFFFFFFF
# Streams of random numbers, one for each purpose, so that no two go together.
CROPS, FLIPS, MIXUP, COLOURS, CUTMIX, CHOICE = range(1, 7)
LUMA = (0.299, 0.587, 0.114)  # of red, green, blue in grey: ITU-R BT.601, as torchvision


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The distribution random crops and flips are drawn from, and what evaluation sees.

    The defaults are those of C. Szegedy et al., "Going Deeper with Convolutions", 2014, section 6.
    """

    area: tuple[float, float] = (0.08, 1.0)  # of the image's area, uniform
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height, log-uniform
    flip: bool = True  # left to right, one time in two
    stored: int = 256  # least side of the squares that the device crops, in pixels
    centre: float = 7 / 8  # part of the shorter side that evaluation keeps: 224 of 256


def uniform(seed: int, index: tf.Tensor, draws: int, stream: int = 0) -> tf.Tensor:
    """Random numbers that depend on (seed, index, stream) alone.

    A counter put through MurmurHash3's 32-bit finaliser (A. Appleby, public domain), in int64
    because every device and XLA multiply that. TensorFlow's own stateless generators take one seed
    a call, so that a batch would need a call for each of its examples.

    Args:
      seed: of the run.
      index: int64 of any shape S, which example.
      draws: numbers wanted for each.
      stream: one of the purposes above; others take further numbers.

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
    draws = uniform(seed, index, 2 * CANDIDATES + 2, CROPS)
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
    # In float32 under every policy: bfloat16 was up to 2.8 grey levels off, float16 0.2.
    narrow = tf.einsum("bow,bhwc->bhoc", columns, images)
    return tf.einsum("boh,bhwc->bowc", rows, narrow)


def random_flips(seed: int, index: tf.Tensor, augmentation: Augmentation) -> tf.Tensor:
    """Which of the examples `index`, int64 [batch], to mirror: bool [batch]."""
    return uniform(seed, index, 1, FLIPS)[:, 0] < 0.5 * augmentation.flip


def flip(images: tf.Tensor, flipped: tf.Tensor) -> tf.Tensor:
    """Mirrors those images of [batch, height, width, channels] that `flipped`, [batch], names."""
    # Of 224 px, 0.4 ms an image on a CPU; by the slice [:, :, ::-1] and tf.where it was 3.4.
    return tf.raw_ops.Select(condition=flipped, x=tf.reverse(images, [2]), y=images)


def jitter_colours(images: tf.Tensor, seed: int, index: tf.Tensor, strength: float) -> tf.Tensor:
    """Changes brightness, then contrast, then saturation, each by a factor of its own an image.

    The three blends of torchvision's ColorJitter(strength, strength, strength): with black, with
    the image's mean grey, with each pixel's own grey. Its factors too, uniform in
    [max(0, 1 - strength), 1 + strength]. Unlike there, the order is fixed and values are cut to
    0..255 once, at the end: the blends are then one sum of image, grey and a constant.

    Args:
      images: float32 [batch, height, width, 3], red, green, blue in 0..255.
      seed: of the run.
      index: int64 [batch], which examples.
      strength: 0 leaves the images alone; 0.4 is customary.

    Returns:
      float32 of the same shape, in 0..255.
    """
    low = max(0.0, 1.0 - strength)
    factors = low + (1.0 + strength - low) * uniform(seed, index, 3, COLOURS)
    brightness, contrast, saturation = tf.split(factors[:, tf.newaxis, tf.newaxis], 3, axis=-1)
    grey = tf.reduce_sum(images * tf.constant(LUMA), axis=-1, keepdims=True)
    mean = tf.reduce_mean(grey, axis=(1, 2), keepdims=True)
    kept = brightness * contrast
    result = kept * (saturation * images + (1.0 - saturation) * grey)
    return tf.clip_by_value(result + brightness * (1.0 - contrast) * mean, 0.0, 255.0)


def random_mix(seed: int, index: tf.Tensor, mixup: float, cutmix: float, size: int) -> tf.Tensor:
    """How much of each pixel is the example's own, the rest being another's: weights for `mix`.

    With both on, every example gets the one or the other, one time in two: drawn an example, like
    all else here, so that the draw depends on neither the batch nor the replica it is in.

    Args:
      seed: of the run.
      index: int64 [batch], which examples.
      mixup, cutmix: alpha of the Beta(alpha, alpha) that the part kept is drawn from; 0: never,
        which not both may be.
      size: side of the images in pixels.

    Returns:
      float32 [batch, 1, 1, 1] or [batch, size, size, 1]. Its mean over the pixels is the part of
      the example that is kept, and so the weight of its targets.
    """
    if not cutmix:
        return mixup_weights(seed, index, mixup)
    if not mixup:
        return cutmix_weights(seed, index, cutmix, size)
    blended = uniform(seed, index, 1, CHOICE)[:, :, tf.newaxis, tf.newaxis] < 0.5
    pasted = cutmix_weights(seed, index, cutmix, size)
    return tf.where(blended, mixup_weights(seed, index, mixup), pasted)


def mixup_weights(seed: int, index: tf.Tensor, alpha: float) -> tf.Tensor:
    """All pixels alike: float32 [batch, 1, 1, 1]. H. Zhang et al., "mixup", 2017."""
    return beta(uniform(seed, index, 2, MIXUP), alpha)[:, tf.newaxis, tf.newaxis, tf.newaxis]


def cutmix_weights(seed: int, index: tf.Tensor, alpha: float, size: int) -> tf.Tensor:
    """0 inside a box and 1 outside: float32 [batch, size, size, 1]. S. Yun et al., "CutMix", 2019.

    The box has 1 - lambda of the area and its centre anywhere in the image; it is cut at the
    borders, so that more than lambda is kept.
    """
    draws = uniform(seed, index, 4, CUTMIX)
    half = tf.sqrt(1.0 - beta(draws[:, :2], alpha))[:, tf.newaxis] / 2
    begin, end = (tf.round(edge * size) for edge in (draws[:, 2:] - half, draws[:, 2:] + half))
    pixels = tf.range(size, dtype=tf.float32)
    inside = (pixels >= begin[..., tf.newaxis]) & (pixels < end[..., tf.newaxis])
    down, across = tf.unstack(tf.cast(inside, tf.float32), axis=1)
    return (1.0 - down[:, :, tf.newaxis] * across[:, tf.newaxis])[..., tf.newaxis]


def beta(draws: tf.Tensor, alpha: float) -> tf.Tensor:
    """Numbers from Beta(alpha, alpha), one for each two uniform ones: [..., 2] -> [...].

    Student's t with 2 alpha degrees of freedom, drawn by the polar method (R. Bailey, Mathematics
    of Computation 62, 1994), and mapped to (0, 1) as L. Devroye does ("Random variate generation in
    one line of code", 1996). Exact for every alpha and without rejection, so elementwise: XLA
    compiles it, TensorFlow's gamma sampler it does not.
    """
    power = draws[..., 0] ** (1.0 / alpha)
    cosine = tf.cos(2.0 * math.pi * draws[..., 1])
    far = (1.0 - power) * cosine**2
    return 0.5 + 0.5 * tf.sign(cosine) * tf.sqrt(tf.math.divide_no_nan(far, far + power))


def mix(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Each example blended with its mirror in the batch, which is the replica's part of it.

    Args:
      values: float32 of shape [batch, ...]: inputs or targets.
      weights: float32 that broadcasts to it, how much of the example itself is kept.
    """
    return weights * values + (1.0 - weights) * tf.reverse(values, [0])


def _bilinear(
    position: tf.Tensor, begin: tf.Tensor, extent: tf.Tensor, size: int, source: int
) -> tf.Tensor:
    """[batch, size, source] weights of source pixels for outputs at `position` [batch, size]."""
    centre = begin[:, tf.newaxis] + extent[:, tf.newaxis] * (position + 0.5) / size
    centre = tf.clip_by_value(centre * source - 0.5, 0.0, source - 1.0)
    pixels = tf.range(source, dtype=tf.float32)
    return tf.maximum(0.0, 1.0 - tf.abs(centre[..., tf.newaxis] - pixels))
