"""The official files of the sets.

Checksums and exact sizes are those that TFDS ships; for cifar-10-python.tar.gz those of Keras. LRA publishes
none; PhysioNet publishes those of the single files.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Archive:
  """An official file.

  Attributes:
    name: its file name.
    url: its address.
    size: bytes; exact if `sha256` is known, otherwise approximate, or None.
    sha256: its checksum in hex; None if nobody publishes one, so that a download cannot be verified.
    unpacked: the folder in it that is imported; '' for a file that is no archive.
    sign: pattern of files by which such a folder is recognised under another name.
    members_known: importers have checksums of the files in that folder.
    read_packed: importers read the packed archive; otherwise it has to be unpacked first.
  """

  name: str
  url: str
  size: int | None = None
  sha256: str | None = None
  unpacked: str = ''
  sign: str = ''
  members_known: bool = False
  read_packed: bool = True


IMDB = Archive(
  name='aclImdb_v1.tar.gz',
  url='https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz',
  size=84_125_825,
  sha256='c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe',
  unpacked='aclImdb',
  sign='train/pos',
)
LRA = Archive(
  name='lra_release.gz',  # a .tar.gz
  url='https://storage.googleapis.com/long-range-arena/lra_release.gz',
  size=7_700_000_000,
)
CIFAR10 = (
  Archive(
    name='cifar-10-binary.tar.gz',
    url='https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',
    size=170_052_171,
    sha256='c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',
    unpacked='cifar-10-batches-bin',
    sign='test_batch.bin',
  ),
  Archive(
    name='cifar-10-python.tar.gz',
    url='https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz',
    size=170_498_071,
    sha256='6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce',
    unpacked='cifar-10-batches-py',
    sign='test_batch',
    members_known=True,
  ),
)
SPEECH_COMMANDS = Archive(
  name='speech_commands_v0.02.tar.gz',
  url='https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz',
  size=2_428_923_189,
  sha256='af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58',
  unpacked='speech_commands_v0.02',
  sign='testing_list.txt',
)
BIDMC = Archive(
  name='bidmc-ppg-and-respiration-dataset-1.0.0.zip',
  url='https://physionet.org/static/published-projects/bidmc/bidmc-ppg-and-respiration-dataset-1.0.0.zip',
  size=218_000_000,
  unpacked='bidmc_csv',
  sign='bidmc_*_Signals.csv',
  members_known=True,
)
# Files of the TSER archive, on Zenodo.
BIDMC_RECORDS = {'HR': 4001456, 'RR': 4001463, 'SpO2': 4001464}
BIDMC_WINDOWS = tuple(
  Archive(
    f'BIDMC32{target}_{part}.ts', f'https://zenodo.org/records/{record}/files/BIDMC32{target}_{part}.ts'
  )
  for target, record in BIDMC_RECORDS.items()
  for part in ('TRAIN', 'TEST')
)
