"""Local folders for Orbax and TFDS, which use etils.epath.

etils takes `[ ] * ?` in the name of a folder for a pattern, and a folder /gs for buckets: files would not be
found, or those of another folder would be. It asks for the names of the owner and group of a file, which are
not known in a container that runs under a number (docker run --user).
"""

import glob
import os
import stat

from etils import epath
from etils.epath import backend, stat_utils


@epath.register_path_cls  # so that these libraries pass it on as it is
class LiteralPath(type(epath.Path('.'))):
  """A local path in which every letter stands for itself."""

  _uri_scheme = None  # of etils: the kind of bucket that the path begins with

  def glob(self, pattern):
    return iter([self / name for name in glob.glob(pattern, root_dir=self)])


def _stat(path) -> stat_utils.StatResult:
  status = os.stat(path)
  return stat_utils.StatResult(
    is_directory=stat.S_ISDIR(status.st_mode),
    length=status.st_size,
    mtime=int(status.st_mtime),
    owner=None,
    group=None,
    mode=status.st_mode,
  )


backend.os_backend.stat = _stat  # for all local paths, because TFDS makes its own of strings
