"""Images on the host: a batch of records decoded, cropped and resized, one image after the other.

A batch is what one thread works on. Image by image, threads handed each one on to the next, which
cost a fifth of the decoding (`docs/decisions.md` of the template has the figures), and reading the
records and drawing the boxes cost more than either does for all of a batch at once.
"""

from collections.abc import Callable

import tensorflow as tf

from .sources import Record

# Part of the shorter side that evaluation keeps: 224 of 256, the custom since AlexNet.
CENTRE = 7 / 8
MARGIN = 2  # pixels around a crop that interpolation, of colour too, can reach


def centre_boxes(aspect: tf.Tensor, part: float = CENTRE) -> tf.Tensor:
    """The central squares that evaluation sees, in parts of an image's height and width.

    Args:
      aspect: float32 [batch], each image's width / height.
      part: of the shorter side, how much to keep.

    Returns:
      float32 [batch, 4]: top, left, height, width.
    """
    height, width = part * tf.minimum(1.0, aspect), part * tf.minimum(1.0, 1.0 / aspect)
    return tf.stack([(1.0 - height) / 2, (1.0 - width) / 2, height, width], axis=-1)


def crops(
    records: Record,
    size: int,
    boxes_of: Callable[[tf.Tensor], tf.Tensor] = centre_boxes,
    fused: bool = True,
) -> tf.Tensor:
    """Decodes a part of each image and resizes it: all of the host's work but batching.

    A JPEG is decoded inside its box only, which costs about half of decoding all of it. Its colours
    are stored at half the size: at the box's edges they are then made without what lies outside.

    Args:
      records: a batch; `image` [batch] holds JPEG, PNG, GIF, BMP or WebP, or `pixels` the images.
      size: side of the results in pixels.
      boxes_of: float32 aspects [batch] -> boxes [batch, 4]: top, left, height, width, in parts of
        an image's height and width.
      fused: False decodes all of each JPEG, to measure what that costs.

    Returns:
      uint8 [batch, size, size, 3].
    """
    shapes = _shapes(records)
    aspect = records["aspect"] if "aspect" in records else _aspects(shapes)
    windows = _windows(boxes_of(aspect), shapes)
    if "pixels" in records:

        def cut(element: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return _resize(_slice(*element), size)

        return _each(cut, (records["pixels"], windows), [size, size, 3])

    def decode(element: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return _resize(_decode_window(*element, fused), size)

    return _each(decode, (records["image"], windows), [size, size, 3])


def squares(
    records: Record,
    size: int,
    boxes_of: Callable[[tf.Tensor], tf.Tensor],
    fused: bool = True,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The images squeezed into squares, for the device to crop: the host's part of its work.

    Images that are stored as squares stay of their size and, where they are JPEGs, only the rows
    that their boxes reach are decoded: entropy coding must be undone from the top, but not to the
    bottom. The other rows are black, and nothing reads them.

    Args:
      records: a batch, as for `crops`.
      size: side of the results in pixels, for images that are not squares of one size already.
      boxes_of: what the device is going to crop, as for `crops`.
      fused: False decodes all rows, to measure what that costs.

    Returns:
      uint8 [batch, side, side, 3], and each original's width / height, float32 [batch].
    """
    if "pixels" in records:
        return records["pixels"], records["aspect"]
    if "side" in records:
        side = int(tf.get_static_value(records["side"]))
        aspect = records["aspect"]
        boxes = boxes_of(aspect)
        if not fused:
            boxes = tf.broadcast_to([0.0, 0.0, 1.0, 1.0], tf.shape(boxes))
        return _decode_rows(records["image"], boxes, side), aspect

    def decode(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return _resize(image, size), tf.shape(image)[:2]

    wanted = (tf.TensorSpec([size, size, 3], tf.uint8), tf.TensorSpec([2], tf.int32))
    images, shapes = tf.map_fn(
        decode, records["image"], fn_output_signature=wanted, parallel_iterations=1
    )
    return images, _aspects(shapes)


def whole_sizes(records: Record) -> tf.Tensor:
    """Decodes all of each image, to see that it can be; returns their sizes, int32 [batch, 2]."""
    if "pixels" in records:
        return _shapes(records)

    def decode(encoded: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return tf.shape(image)[:2]

    wanted = tf.TensorSpec([2], tf.int32)
    return tf.map_fn(decode, records["image"], fn_output_signature=wanted, parallel_iterations=1)


def _decode_rows(encoded: tf.Tensor, boxes: tf.Tensor, side: int) -> tf.Tensor:
    """Decodes those rows of square JPEGs that the boxes reach; uint8 [batch, side, side, 3]."""
    begin = tf.cast(tf.floor(boxes[:, 0] * side), tf.int32) - MARGIN
    end = tf.cast(tf.math.ceil((boxes[:, 0] + boxes[:, 2]) * side), tf.int32) + MARGIN
    begin, end = tf.maximum(begin, 0), tf.minimum(end, side)
    zeros = tf.zeros_like(begin)
    windows = tf.stack([begin, zeros, end - begin, zeros + side], axis=1)
    # Rows of all images and the black ones between them, joined once: a pad of each would copy
    # every image twice.
    gaps = tf.concat([begin, [0]], 0) - tf.concat([[0], end - side], 0)
    count = encoded.shape[0] or tf.shape(encoded)[0]
    rows = tf.TensorArray(tf.uint8, 2 * count + 1, infer_shape=False, element_shape=[None, side, 3])
    black = tf.zeros([2 * side, side, 3], tf.uint8)
    for i in tf.range(count):
        decoded = tf.io.decode_and_crop_jpeg(encoded[i], windows[i], channels=3)
        rows = rows.write(2 * i, black[: gaps[i]]).write(2 * i + 1, decoded)
    rows = rows.write(2 * count, black[: gaps[count]])
    return tf.reshape(rows.concat(), [count, side, side, 3])


def _each(body: Callable, elements: tuple[tf.Tensor, ...], shape: list[int]) -> tf.Tensor:
    signature = tf.TensorSpec(shape, tf.uint8)
    return tf.map_fn(body, elements, fn_output_signature=signature, parallel_iterations=1)


def _shapes(records: Record) -> tf.Tensor:
    """Height and width of each stored image, int32 [batch, 2]."""
    if "pixels" in records:
        pixels = records["pixels"]
        return tf.broadcast_to(pixels.shape[1:3], [tf.shape(pixels)[0], 2])
    if "side" in records:
        return tf.broadcast_to(records["side"], [tf.shape(records["image"])[0], 2])
    wanted = tf.TensorSpec([2], tf.int32)
    return tf.map_fn(_shape, records["image"], fn_output_signature=wanted, parallel_iterations=1)


def _shape(encoded: tf.Tensor) -> tf.Tensor:
    def jpeg() -> tf.Tensor:
        return tf.io.extract_jpeg_shape(encoded)[:2]

    def png() -> tf.Tensor:  # its header: 8 bytes, then a chunk's length and name, width, height
        size = tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)
        return tf.reverse(size, [0])

    def other() -> tf.Tensor:
        return tf.shape(tf.io.decode_image(encoded, channels=3, expand_animations=False))[:2]

    is_png = tf.equal(tf.strings.substr(encoded, 0, 8), b"\x89PNG\r\n\x1a\n")
    return tf.cond(tf.io.is_jpeg(encoded), jpeg, lambda: tf.cond(is_png, png, other))


def _aspects(shapes: tf.Tensor) -> tf.Tensor:
    sides = tf.cast(shapes, tf.float32)
    return sides[:, 1] / sides[:, 0]


def _windows(boxes: tf.Tensor, shapes: tf.Tensor) -> tf.Tensor:
    """Boxes in whole pixels, int32 [batch, 4]: top, left, height, width, at least one pixel."""
    sides = tf.cast(shapes, tf.float32)
    extent = tf.maximum(tf.cast(tf.round(boxes[:, 2:] * sides), tf.int32), 1)
    begin = tf.cast(tf.round(boxes[:, :2] * sides), tf.int32)
    return tf.concat([tf.minimum(begin, shapes - extent), extent], axis=1)


def _decode_window(encoded: tf.Tensor, window: tf.Tensor, fused: bool) -> tf.Tensor:
    def jpeg() -> tf.Tensor:
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

    def other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return _slice(image, window)

    return tf.cond(tf.io.is_jpeg(encoded), jpeg, other) if fused else other()


def _slice(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    top, left, height, width = tf.unstack(window)
    return image[top : top + height, left : left + width]


def _resize(image: tf.Tensor, size: int) -> tf.Tensor:
    resized = tf.raw_ops.ResizeBilinear(
        images=image[tf.newaxis], size=[size, size], half_pixel_centers=True
    )[0]
    resized.set_shape([size, size, 3])
    # Adding a half and cutting off rounds; no value lies outside 0..255, so nothing is clipped.
    return tf.cast(resized + 0.5, tf.uint8)
