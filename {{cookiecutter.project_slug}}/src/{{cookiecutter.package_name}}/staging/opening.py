"""Which source a URL names."""

import re

from ..errors import UserError
from .local_source import LocalSource
from .source import Source, public_url

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst")


def open_source(url: str, include: str = "", untar: bool = False, checksums: str = "") -> Source:
    """Opens what is to be staged; nothing is read yet.

    Args:
      url: a path, or a URL of a scheme that is known.
      include: comma-separated globs; "" for all.
      untar: the source is an archive and its members are the data set.
      checksums: a list of sums, which an archive is not read by.

    Raises:
      UserError: an unknown scheme, nothing there, or no archive.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        scheme, rest = "", url
    if not rest:
        raise UserError("give SRC: a directory, or an s3://, gs:// or http(s):// URL")
    if untar:
        name = public_url(url)
        if not name.endswith(ARCHIVES):
            raise UserError(f"--untar: {name} is none of {', '.join(ARCHIVES)}")
        for flag in ("include" if include else "", "checksums" if checksums else ""):
            if flag:
                raise UserError(f"--untar and --{flag} do not go together: leave one out")
        from .tar_source import TarSource  # imported late: a local directory needs none of it

        return TarSource(open_source(url))
    if scheme in ("", "file"):
        return LocalSource(rest, include)
    from .remote_source import open_remote

    return open_remote(url, include)
