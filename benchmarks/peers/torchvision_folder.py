"""torchvision's ImageFolder in a DataLoader, as PyTorch's example and torchvision's guide do."""

from collections.abc import Iterator
from typing import Any

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet, as the example has them


def batches(
    directory: str, batch_size: int, image_size: int, workers: int, pil: bool
) -> Iterator[tuple[Any, int]]:
    """Random resized crops and flips, one worker process a core.

    With `pil`: PIL, `ToTensor` and `Normalize`, float32, as in PyTorch's ImageNet example. Else
    `decode_jpeg` and v2 transforms that stay uint8, as torchvision's guide advises for speed.
    """
    import torch
    from torchvision import datasets, io, transforms
    from torchvision.transforms import v2

    if pil:
        transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(image_size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )
        data = datasets.ImageFolder(directory, transform)
    else:
        transform = v2.Compose(
            [v2.RandomResizedCrop(image_size, antialias=True), v2.RandomHorizontalFlip()]
        )
        data = datasets.ImageFolder(directory, transform, loader=lambda path: decode(io, path))
    # An endless sampler, so that no window has an epoch's pause in it.
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=1 << 40)
    loader = torch.utils.data.DataLoader(
        data, batch_size, sampler=sampler, num_workers=workers, drop_last=True
    )
    for images, _ in loader:
        yield images.numpy(), len(images)


def decode(io: Any, path: str) -> Any:
    """An image file as a uint8 tensor [3, height, width]."""
    return io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)
