"""`--data`: which data set a name stands for."""

from ..errors import UserError
from .digits import open_digits
from .folders import open_folder
from .listing import refuse_url, user_cache
from .records import open_records
from .sources import Splits
from .synthetic import open_synthetic
from .tfds import open_tfds


def open_data(
    data: str, cache_dir: str = "", shuffle_memory: int = 256, tolerant: bool = False
) -> Splits:
    """Opens the data set that `--data` names.

    Args:
      data: digits, synthetic[:COUNT], tfds:NAME, records:DIR or folder:DIR.
      cache_dir: where synthetic photos are kept; "" for the user's cache.
      shuffle_memory: MiB of encoded records that a shuffle buffer may hold.
      tolerant: open TFRecord files that are cut short too; who reads them must expect that.

    Raises:
      UserError: an unknown kind, or whatever is wrong with the data set.
    """
    kind, _, rest = data.partition(":")
    buffer_bytes = shuffle_memory << 20
    refuse_url(data)
    if data == "digits":
        return open_digits()
    if kind == "synthetic":
        return open_synthetic(rest, user_cache(cache_dir), buffer_bytes)
    if kind == "tfds" and rest:
        return open_tfds(rest, buffer_bytes)
    if kind == "records" and rest:
        return open_records(rest, buffer_bytes, tolerant)
    if kind == "folder" and rest:
        return open_folder(rest)
    raise UserError(f"--data={data}: give digits, synthetic, tfds:NAME, records:DIR or folder:DIR")
