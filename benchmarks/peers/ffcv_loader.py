"""ffcv, as its ImageNet example reads JPEGs from a file of its own format."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def batches(
    directory: str, batch_size: int, image_size: int, workers: int, made: str, install_log: str
) -> Iterator[tuple[Any, int]]:
    """Random resized crops and flips, uint8.

    Args:
      directory: of class directories.
      batch_size, image_size, workers: of the loader.
      made: the file of its own format, written first if it is not there.
      install_log: what pip said, for the reason where it could not be installed.
    """
    try:
        from ffcv.fields import IntField, RGBImageField
        from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import RandomHorizontalFlip, ToTensor
        from ffcv.writer import DatasetWriter
    except ImportError as error:
        raise ImportError(f"does not install: {error}{reason(install_log)}") from None
    from torchvision.datasets import ImageFolder

    if not Path(made).exists():
        fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
        partial = Path(made).with_suffix(".partial")
        DatasetWriter(str(partial), fields, num_workers=workers).from_indexed_dataset(
            ImageFolder(directory)
        )
        partial.rename(made)
    image = [
        RandomResizedCropRGBImageDecoder((image_size, image_size)),
        RandomHorizontalFlip(),
        ToTensor(),
    ]
    loader = Loader(
        made,
        batch_size=batch_size,
        num_workers=workers,
        order=OrderOption.QUASI_RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
    )
    while True:
        for images, _ in loader:
            yield images.numpy(), len(images)


def reason(install_log: str) -> str:
    """The first error in what pip wrote."""
    path = Path(install_log)
    said = path.read_text(errors="replace") if path.is_file() else ""
    error = re.search(r"\w+Error: .+", said)
    return f" (pip: {error[0][:150]})" if error else ""
