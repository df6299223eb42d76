"""Local folders for Orbax and TFDS, which use etils.epath.

etils takes `[ ] * ?` in the name of a folder for a pattern, and a folder /gs for buckets: files would not be
found, or those of another folder would be.
"""

import glob

from etils import epath


@epath.register_path_cls  # so that these libraries pass it on as it is
class LiteralPath(type(epath.Path('.'))):
  """A local path in which every letter stands for itself."""

  _uri_scheme = None  # of etils: the kind of bucket that the path begins with

  def glob(self, pattern):
    return iter([self / name for name in glob.glob(pattern, root_dir=self)])
