"""Chooses what reads a remote URL."""

from .gcs_source import GCSSource
from .http_source import HTTPSource
from .s3_source import S3Source
from .source import Source


def open_remote(url: str, include: str = "") -> Source:
    """The source of a URL; nothing is read yet.

    Args:
      url: s3://, gs://, gcs://, http:// or https://; may hold a password or a signed query, which
        no message repeats.
      include: comma-separated globs; "" for all.

    Raises:
      UserError: the scheme does not allow such a URL, or its library is not installed.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "s3":
        return S3Source(url, include)
    if scheme in ("gs", "gcs"):
        return GCSSource(f"gs://{rest}", include)
    return HTTPSource(url, include)
