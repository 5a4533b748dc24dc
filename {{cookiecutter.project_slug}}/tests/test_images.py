"""Images: what the host decodes and crops."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import bilinear_crop, noise_jpeg

from {{cookiecutter.package_name}}.data import augmentation, images


def a_batch(*encoded):
    return {"image": tf.stack(encoded)}


def constant_boxes(*boxes):
    return lambda aspect: tf.constant(boxes, tf.float32)


@pytest.mark.parametrize("kind", ["jpeg", "png", "both"])
def test_a_crop_is_that_part_of_the_image(kind):
    pixels = tf.io.decode_jpeg(noise_jpeg(300, 400, 3))
    jpeg, png = tf.io.encode_jpeg(pixels, quality=100), tf.io.encode_png(pixels)
    first, second = {"jpeg": (jpeg, jpeg), "png": (png, png), "both": (jpeg, png)}[kind]
    boxes = [(0.1, 0.3, 0.5, 0.25), (0.4, 0.0, 0.6, 1.0)]
    crops = images.crops(a_batch(first, second), 32, constant_boxes(*boxes))
    assert crops.shape == (2, 32, 32, 3) and crops.dtype == tf.uint8
    for crop, box in zip(crops.numpy(), boxes, strict=True):
        expected = bilinear_crop(pixels.numpy(), box, 32)
        assert np.abs(crop - expected).mean() < 4  # the window is rounded to whole pixels
    assert np.abs(crops[0].numpy().astype(int) - crops[1]).mean() > 10


def test_the_shape_of_every_kind_of_image_is_read_from_its_header():
    pixels = tf.zeros([30, 45, 3], tf.uint8)
    bmp = b"BM" + (54 + 136 * 30).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    bmp += (40).to_bytes(4, "little") + (45).to_bytes(4, "little") + (30).to_bytes(4, "little")
    bmp += (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24) + bytes(136 * 30)
    found = images._shapes(a_batch(tf.io.encode_jpeg(pixels), tf.io.encode_png(pixels), bmp))
    np.testing.assert_array_equal(found, [[30, 45]] * 3)


def test_training_decodes_inside_the_crop_only():
    def crop(encoded):
        return images.crops({"image": encoded}, 32)

    graph = tf.function(crop).get_concrete_function(tf.TensorSpec([4], tf.string)).graph
    names = {node.op for node in graph.as_graph_def().node}
    for function in graph.as_graph_def().library.function:
        names |= {node.op for node in function.node_def}
    assert "DecodeAndCropJpeg" in names and "DecodeJpeg" not in names


def test_the_centre_crop_keeps_the_middle_of_any_shape():
    stripes = np.zeros((80, 160, 3), np.uint8)
    stripes[:, 40:120] = 200
    tall, grey = np.swapaxes(stripes, 0, 1), stripes[..., :1]
    batch = a_batch(*map(tf.io.encode_png, (stripes, tall, grey)))
    crops = images.crops(batch, 16, lambda aspect: images.centre_boxes(aspect, 1.0))
    assert (crops.numpy() == 200).all()


def squeezed(image, side):
    return tf.cast(tf.image.resize(image, [side, side], antialias=True), tf.uint8)


def prepared(count=6, side=64):
    """Square JPEGs with their aspect ratios, as `prepare` writes them."""
    squares = [
        squeezed(tf.io.decode_jpeg(noise_jpeg(90, 120, seed)), side) for seed in range(count)
    ]
    return {
        "image": tf.stack([tf.io.encode_jpeg(square, quality=95) for square in squares]),
        "aspect": tf.fill([count], 120 / 90),
        "side": tf.constant(side),
    }


def test_of_prepared_jpegs_the_rows_that_the_boxes_reach_are_decoded_exactly():
    records, index = prepared(), tf.range(6, dtype=tf.int64)

    def boxes(aspect):
        return augmentation.random_boxes(3, index, aspect, augmentation.Augmentation())

    drawn = boxes(records["aspect"]).numpy()
    decoded, aspect = images.squares(records, 99, boxes)
    np.testing.assert_array_equal(aspect, records["aspect"])
    assert decoded.shape == (6, 64, 64, 3)
    black = 0
    for i, (top, _, height, _) in enumerate(drawn):
        begin, end = int(top * 64), int(np.ceil((top + height) * 64))
        all_rows = tf.io.decode_jpeg(records["image"][i]).numpy()
        np.testing.assert_array_equal(decoded[i, begin:end], all_rows[begin:end])
        black += int((decoded[i].numpy() == 0).all(axis=(1, 2)).sum())
    assert black > 30  # rows that were not decoded


def test_prepared_and_raw_squares_are_cropped_in_the_originals_proportions():
    records = prepared(4)
    decoded = [tf.io.decode_jpeg(encoded) for encoded in records["image"]]
    raw = {"pixels": tf.stack(decoded), "aspect": records["aspect"]}
    np.testing.assert_array_equal(images.crops(records, 32), images.crops(raw, 32))
    # The central square of a 4:3 photo is 3/4 of its width: less of the squeezed square's width.
    box = (1 - 7 / 8) / 2, (1 - 7 / 8 * 0.75) / 2, 7 / 8, 7 / 8 * 0.75
    expected = bilinear_crop(decoded[0].numpy(), box, 32)
    assert np.abs(images.crops(records, 32)[0].numpy() - expected).mean() < 3
    same, _ = images.squares(raw, 99, images.centre_boxes)
    np.testing.assert_array_equal(same, raw["pixels"])
