"""NVIDIA DALI on the CPU, as its ResNet-50 example decodes, crops, resizes and flips."""

from collections.abc import Iterator
from typing import Any

MEAN = [0.485 * 255, 0.456 * 255, 0.406 * 255]  # of ImageNet, as the example has them
STD = [0.229 * 255, 0.224 * 255, 0.225 * 255]


def batches(
    directory: str, batch_size: int, image_size: int, threads: int, normalise: bool
) -> Iterator[tuple[Any, int]]:
    """Random resized crops and flips, decoded inside the crop only.

    With `normalise` float32 in planes, as in the example; else uint8, which is less work.
    """
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def
    def pipeline() -> Any:
        files, labels = fn.readers.file(file_root=directory, random_shuffle=True, name="reader")
        images = fn.decoders.image_random_crop(
            files, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(images, size=[image_size, image_size], interp_type=types.INTERP_LINEAR)
        flipped = fn.random.coin_flip()
        if normalise:
            images = fn.crop_mirror_normalize(
                images, dtype=types.FLOAT, output_layout="CHW", mean=MEAN, std=STD, mirror=flipped
            )
        else:
            images = fn.flip(images, horizontal=flipped)
        return images, labels

    made = pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=None,
        seed=0,
        prefetch_queue_depth=2,
    )
    made.build()
    while True:
        images, _ = made.run()
        yield np.asarray(images.as_tensor()), batch_size
