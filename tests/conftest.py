"""Settings of every test: 8 CPU devices, strict promotion; warnings are errors (pyproject.toml).

They are environment variables, so that processes started by tests have them too. They are set before jax is
imported.
"""

import contextlib
import gc
import importlib.metadata
import itertools
import json
import os
import pathlib
import shutil
import tempfile
import types

DEVICES = 8
os.environ['JAX_PLATFORMS'] = os.environ.get('LRA_SPT_TEST_PLATFORM', 'cpu')
os.environ['XLA_FLAGS'] = ' '.join(
  [os.environ.get('XLA_FLAGS', ''), f'--xla_force_host_platform_device_count={DEVICES}']
).strip()
os.environ['JAX_NUMPY_DTYPE_PROMOTION'] = 'strict'
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')  # idle threads would spin on the cores of other workers

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402

# A plugin may have imported jax before this file set the variables.
jax.config.update('jax_platforms', os.environ['JAX_PLATFORMS'])
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')

# Grain's worker processes read absl flags, which pytest does not parse.
flags.FLAGS.mark_as_parsed()

from lra_spt.data import tasks  # noqa: E402

pytest_plugins = ['tests.small_runs']

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHIPPED = tuple(tasks.TASKS.values())  # before any test file registers a task


MEMORY_OF_A_WORKER = 3 * 2**30
IN_MEMORY, ROOM = pathlib.Path('/dev/shm'), 4 * 2**30


def pytest_configure(config):
  """Sets XLA's options.

  The tests mostly compile, so they and their processes compile with fewer optimizations, which takes a third
  of the time. Slow tests, which compute, and tests on accelerators do not. Modules that compute use the
  fixture `optimized`. LRA_SPT_TEST_OPTIMIZED=1 compiles everything as for users.
  """
  slow = 'not slow' not in config.option.markexpr
  if slow or os.environ['JAX_PLATFORMS'] != 'cpu' or os.environ.get('LRA_SPT_TEST_OPTIMIZED'):
    return
  less = ['--xla_cpu_parallel_codegen_split_count=1']
  version = importlib.metadata.version('jaxlib').split('.')
  if (int(version[0]), int(version[1])) < (0, 11):  # newer versions have only fusion emitters
    less.append('--xla_cpu_use_fusion_emitters=false')
  if not hasattr(config, 'workerinput'):  # workers inherit all this from the process that starts them
    os.environ['XLA_FLAGS'] = ' '.join([*less, os.environ['XLA_FLAGS']])
    os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = 'true'
    if _runs_all_files(config):
      _use_memory_for_files(config)
    os.environ.update(_shared_cache(config))
  jax.config.update('jax_disable_most_optimizations', True)
  for name, kind in CACHE_SETTINGS.items():
    jax.config.update(name.lower(), kind(os.environ[name]))


CACHE_SETTINGS = {  # for compiled programs, which all tests of a session and their processes share
  'JAX_COMPILATION_CACHE_DIR': str,
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': float,
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': int,
}


def _runs_all_files(config) -> bool:
  return config.args_source != pytest.Config.ArgsSource.ARGS


def _use_memory_for_files(config):
  """Puts temporary files into memory, unless TMPDIR is set or there is no room: tests that save wait for
  disks (docs/tests.md)."""
  if 'TMPDIR' in os.environ or not IN_MEMORY.is_dir() or shutil.disk_usage(IN_MEMORY).free < ROOM:
    return
  folder = tempfile.mkdtemp(prefix='lra_spt_tests_', dir=IN_MEMORY)
  config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
  os.environ['TMPDIR'], tempfile.tempdir = folder, None


def _shared_cache(config):
  folder = tempfile.mkdtemp(prefix='lra_spt_compiled_')
  config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
  return dict(zip(CACHE_SETTINGS, (folder, '0', '0'), strict=True))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist calls it; without that plugin use `pytest -o addopts=`
def pytest_xdist_auto_num_workers(config):
  """The number of worker processes: for all tests as many as cores and memory allow, else 0.

  Named files need no workers, slow tests use all cores themselves, and accelerators cannot be shared.
  """
  if (
    not _runs_all_files(config)
    or 'not slow' not in config.option.markexpr
    or os.environ['JAX_PLATFORMS'] != 'cpu'
  ):
    return 0
  memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  return max(1, min(len(os.sched_getaffinity(0)), memory // MEMORY_OF_A_WORKER))


@pytest.fixture(scope='session')
def repository():
  """The folder with lra_spt, configs, tests, ..."""
  return ROOT


@pytest.fixture(scope='session')
def golden():
  """golden(name) -> {key: array} from a file of tests/golden."""

  def load(name):
    with np.load(ROOT / 'tests' / 'golden' / f'{name}.npz', allow_pickle=False) as file:
      return dict(file)

  return load


@pytest.fixture(scope='session')
def shipped_tasks():
  """The tasks of the package, without those that tests register."""
  return SHIPPED


@pytest.fixture(scope='session')
def shared_folder():
  """The folder with real data (LRA_SPT_SHARED, or `shared` beside the repository). Skips the test if there is
  none."""
  path = pathlib.Path(os.environ.get('LRA_SPT_SHARED', ROOT.parent / 'shared'))
  if not path.is_dir():
    pytest.skip(f'no folder {path}: set LRA_SPT_SHARED to the folder with the real data')
  return path


PACKAGES = ('lra_spt', 'data_prep', 'configs', 'benchmarks')


@pytest.fixture(scope='session')
def source_modules():
  """{module: file} of every module in our packages."""
  files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob('*.py')))
  names = (('.'.join(path.relative_to(ROOT).with_suffix('').parts), path) for path in files)
  return {name.removesuffix('.__init__'): path for name, path in names}


@pytest.fixture(scope='session')
def tiny_data(tmp_path_factory):
  """The folder with the data of tests/tiny_config.py."""
  from data_prep.sources import listops

  folder = tmp_path_factory.mktemp('tiny_data')
  shape = listops.TreeShape(max_depth=3, max_args=3, min_length=3, max_length=24)
  sizes = {'train': 96, 'validation': 20, 'test': 24}
  listops.prepare_listops(folder, dataset='tiny_listops', sizes=sizes, shape=shape, length=24, workers=1)
  return folder


@pytest.fixture(scope='session')
def make_set(tmp_path_factory):
  """Writes a set of random bytes or tokens; returns (data_dir, {file: (list of inputs, labels)})."""

  from data_prep import builders

  def make(dataset, counts, shape, classes=10, longest=12, vocabulary=None, data_dir=None):
    rng = np.random.default_rng(0)
    data_dir = data_dir or tmp_path_factory.mktemp(dataset)
    content = {}
    for file, count in counts.items():
      shapes = [shape or (int(rng.integers(1, longest + 1)),) for _ in range(count)]
      high = 256 if vocabulary is None else len(vocabulary)
      inputs = [rng.integers(0, high, s).astype(np.uint8) for s in shapes]
      content[file] = inputs, rng.integers(0, classes, count).tolist()
    source = builders.Source(
      description='random',
      citation='none',
      files={file: (lambda file=file: zip(*content[file], strict=True)) for file in counts},
      counts=counts,
      classes=classes,
      shape=shape,
      origin='random numbers',
      verified=False,
      extra={} if vocabulary is None else {'vocabulary': list(vocabulary)},
    )
    builders.prepare_set(dataset, data_dir, {'counts': counts}, lambda work: source)
    return data_dir, content

  return make


@pytest.fixture(scope='session')
def gcs_server():
  """A stand-in for Google Cloud Storage (tests/fake_gcs.py), for this process and those that it starts.
  Owners of folders there count as dead after 3 s."""
  from lra_spt.files import gcs as buckets
  from lra_spt.files import leases
  from tests import fake_gcs

  with fake_gcs.FakeGCS() as server, pytest.MonkeyPatch.context() as patch:
    for name, value in server.environment.items():
      patch.setenv(name, value)
    patch.setenv('LRA_SPT_LEASE_SECONDS', '3')
    for name, value in {'SILENCE': 3.0, 'BEAT': 0.5, 'FENCE': 1.5}.items():
      patch.setattr(leases, name, value)
    retries = {'max_retries': 4, 'initial_delay': '10ms', 'max_delay': '40ms'}
    patch.setattr(buckets, '_RETRIES', retries)
    yield server


@pytest.fixture
def gcs(gcs_server):
  """The stand-in for Google Cloud Storage, without faults."""
  gcs_server.fault = lambda method, name: None
  yield gcs_server
  gcs_server.fault = lambda method, name: None


@pytest.fixture
def bucket():
  """The name of a new bucket."""
  return f'bucket{next(_buckets)}'


_buckets = itertools.count()


@pytest.fixture
def dead_owner(gcs, bucket):
  """Makes a dead process the owner of the folder `run` of the bucket."""

  def make(seconds=1.0):
    lease = {'process': 7, 'host': 'gone', 'id': 'x', 'seconds': seconds}
    gcs.put(bucket, 'run/.lease', json.dumps(lease).encode())

  return make


@pytest.fixture(scope='session')
def compilation_cache(tmp_path_factory):
  """Environment variables that let processes share compiled programs."""
  if os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    return {name: os.environ[name] for name in CACHE_SETTINGS}
  folder = str(tmp_path_factory.mktemp('compiled'))
  return dict(zip(CACHE_SETTINGS, (folder, '0', '0'), strict=True))


@pytest.fixture(scope='session')
def for_tpus():
  """The environment of a process that compiles for TPUs; this machine needs none."""
  return os.environ | {
    'XLA_FLAGS': '',
    'JAX_DISABLE_MOST_OPTIMIZATIONS': 'false',
    'JAX_PLATFORMS': 'cpu',
    'TPU_SKIP_MDS_QUERY': '1',  # there is no metadata server that knows the type of TPU
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # two compilers may run at once
    'PYTHONPATH': str(ROOT),
  }


@pytest.fixture(scope='session')
def file_contents():
  """file_contents(folder) -> {relative path: bytes} of all files below a folder."""

  def read(folder):
    files = (path for path in pathlib.Path(folder).rglob('*') if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

  return read


@pytest.fixture(scope='module', autouse=True)
def _frozen_garbage():
  """Excludes the objects that remain after a file (programs, traces, modules) from garbage collection. By the
  end of all tests it would take seconds to look through them."""
  gc.set_threshold(50_000, 20, 20)  # fewer collections during a file: most objects of a trace are short-lived
  yield
  gc.collect()
  gc.freeze()


@pytest.fixture
def monkeypatch(monkeypatch):
  """pytest's monkeypatch, which also forgets traced programs: they do not contain the changed code."""
  from lra_spt.training.programs import forget_programs

  replace, replaced = monkeypatch.setattr, []

  def setattr(target, *arguments, **keywords):
    if isinstance(target, (str, type, types.ModuleType)):  # attributes of other objects are not traced
      forget_programs()
      replaced.append(target)
    replace(target, *arguments, **keywords)

  monkeypatch.setattr = setattr
  yield monkeypatch
  if replaced:
    forget_programs()


@pytest.fixture(scope='module')
def optimized():
  """Compiles with all optimizations, for modules whose programs compute longer than they compile."""
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', False)
  yield
  jax.config.update('jax_disable_most_optimizations', before)


# Settings of jax that other libraries and environments set, each of which changed numbers or was refused.
OTHER_SETTINGS = {
  'jax_enable_x64': True,
  'jax_default_prng_impl': 'rbg',
  'jax_threefry_partitionable': False,
  'jax_random_seed_offset': 3,
  'jax_softmax_custom_jvp': True,
  'jax_default_matmul_precision': 'highest',
}


@pytest.fixture
def other_settings():
  """Within other_settings(), this process has OTHER_SETTINGS, in all its threads."""

  @contextlib.contextmanager
  def changed():
    before = {name: getattr(jax.config, name) for name in OTHER_SETTINGS}
    try:
      for name, value in OTHER_SETTINGS.items():
        jax.config.update(name, value)
      yield
    finally:
      for name, value in before.items():
        jax.config.update(name, value)

  return changed


@pytest.fixture(scope='session')
def on_devices():
  """on_devices(count) -> environment variables of a process with this number of CPU devices."""

  def environment(count):
    flags = os.environ['XLA_FLAGS'].split()
    flags = [flag for flag in flags if 'xla_force_host_platform_device_count' not in flag]
    return {'XLA_FLAGS': ' '.join([*flags, f'--xla_force_host_platform_device_count={count}'])}

  return environment


@pytest.fixture
def token_task_of():
  """token_task_of(dataset, length) -> a ListOps task that reads this set."""

  def make(dataset, length):
    return tasks.Task(
      name=f'{dataset}_{length}',
      dataset=dataset,
      inputs=tasks.Tokens(length, vocabulary=19),
      labels=tasks.Classes(10),
    )

  return make


@pytest.fixture
def byte_task_of():
  """byte_task_of(dataset, length, classes) -> a task over bytes, split 80/10/10."""

  def make(dataset, length, classes):
    return tasks.Task(
      name=f'{dataset}_{length}',
      dataset=dataset,
      inputs=tasks.Bytes(length),
      labels=tasks.Classes(classes),
      splits='random',
    )

  return make
