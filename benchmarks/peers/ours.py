"""This project's input pipeline, put together as `train` does, and what its device part costs."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PER_CALL = 4  # batches taken in one call of a compiled loop, as in training


def batches(
    data: str,
    augment: str,
    batch_size: int,
    image_size: int,
    cache_dir: str = "",
    first_pass: bool = False,
) -> Iterator[tuple[Any, int]]:
    """uint8 batches, crops or (with `augment="device"`) whole images a little larger.

    Args:
      data, augment, batch_size, image_size, cache_dir: flags of the same name.
      first_pass: the first pass over the data again and again, each with its start; else the
        passes that follow it.
    """
    pipeline, settings, splits, tf = opened(data, augment, batch_size, image_size, cache_dir)
    from package_in_place.data.pipeline import training_batches

    @tf.function
    def take(iterator: Any, count: Any) -> Any:
        for _ in tf.range(count - 1):
            iterator.get_next()
        return tf.nest.flatten(iterator.get_next())[0]

    whole_pass = splits.train.count // batch_size
    count = tf.constant(whole_pass if first_pass else PER_CALL)
    while True:
        start = 0 if first_pass else splits.train.count
        iterator = iter(training_batches(splits.train, pipeline, batch_size, settings.seed, start))
        yield take(iterator, count), int(count) * batch_size
        while not first_pass:
            yield take(iterator, count), int(count) * batch_size


def device_part(
    data: str, augment: str, batch_size: int, image_size: int, cache_dir: str = ""
) -> Iterator[tuple[Any, int]]:
    """What the device does with a batch that is there already, done by this machine's CPU."""
    pipeline, settings, splits, tf = opened(data, augment, batch_size, image_size, cache_dir)
    from package_in_place import task
    from package_in_place.data.pipeline import training_batches

    batch = next(iter(training_batches(splits.train, pipeline, batch_size, settings.seed, 0)))

    @tf.function
    def prepare(features: Any, labels: Any, index: Any) -> Any:
        return task.prepare_training(features, labels, index, settings, len(splits.classes))[0]

    while True:
        yield prepare(*batch), batch_size


def arithmetic(
    data: str, batch_size: int, image_size: int, cache_dir: str = ""
) -> dict[str, float]:
    """Floating-point operations an image: of the device's augmentation, and of ResNet-50's step."""
    pipeline, settings, splits, tf = opened(data, "device", batch_size, image_size, cache_dir)
    from package_in_place import task
    from package_in_place.data.pipeline import training_batches
    from package_in_place.model import build_model

    batch = next(iter(training_batches(splits.train, pipeline, batch_size, settings.seed, 0)))
    prepare = functools.partial(
        task.prepare_training, settings=settings, classes=len(splits.classes)
    )
    model = build_model("resnet50", 1000, image_size, "float32", 0.0, 0)
    images = tf.zeros([batch_size, image_size, image_size, 3])
    augmentation = operations(tf.function(prepare).get_concrete_function(*batch).graph)
    forward = operations(
        tf.function(lambda x: model(x, training=True)).get_concrete_function(images).graph
    )
    # Backward costs a product for the weights and one for the inputs, where forward has one.
    return {"augmentation": augmentation / batch_size, "resnet50": 3 * forward / batch_size}


def operations(graph: Any) -> float:
    """Multiplications and additions in a graph's products and convolutions, from their shapes."""
    total = 0.0
    for operation in graph.get_operations():
        shapes = [tensor.shape.as_list() for tensor in operation.inputs if tensor.shape.rank]
        result = product(operation.outputs[0].shape.as_list()) if operation.outputs else 0.0
        if operation.type == "Einsum":
            terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
            sizes = {
                letter: size
                for term, shape in zip(terms, shapes, strict=True)
                for letter, size in zip(term, shape, strict=True)
            }
            total += 2 * product(list(sizes.values()))
        elif operation.type == "Conv2D":
            total += 2 * result * product(shapes[1][:3])
        elif operation.type in ("MatMul", "BatchMatMulV2", "BatchMatMulV3"):
            total += 2 * result * shapes[0][-1]
    return total


def product(sizes: list[int]) -> float:
    result = 1.0
    for size in sizes:
        result *= size
    return result


def opened(
    data: str, augment: str, batch_size: int, image_size: int, cache_dir: str
) -> tuple[Any, Any, Any, Any]:
    """(what the host does with records, settings, splits, tensorflow), as `job.build` has them."""
    from package_in_place.runtime import start_tensorflow

    start_tensorflow()
    import tensorflow as tf
    from package_in_place import task
    from package_in_place.settings import Settings

    flags = Settings(
        data=data,
        augment=augment,
        batch_size=batch_size,
        image_size=image_size,
        cache_dir=cache_dir,
    )
    settings = task.fill_in(flags, on_gpu=False)
    splits = task.open_splits(settings)
    decode = functools.partial(task.decode_training, settings=settings, classes=len(splits.classes))
    return decode, settings, splits, tf


def export(data: str, directory: str, cache_dir: str = "") -> int:
    """Writes every record's encoded image to DIRECTORY/SPLIT/CLASS/NUMBER.jpg; their number."""
    _, _, splits, _ = opened(data, "none", 1, 224, cache_dir)
    total = 0
    for split in ("train", "validation"):
        source = getattr(splits, split)
        number = 0
        for elements in source.in_order().batch(256):
            records = source.read(*(elements if isinstance(elements, tuple) else (elements,)))
            for image, label in zip(
                records["image"].numpy(), records["label"].numpy(), strict=True
            ):
                folder = Path(directory) / split / splits.classes[label]
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number:06}.jpg").write_bytes(image)
                number += 1
        total += number
    return total
