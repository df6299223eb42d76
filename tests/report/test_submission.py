"""Submissions: runs become one file and come back. Changes are found, and harmful files are refused."""

import io
import json
import stat
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from data_prep.sources import stripes
from lra_spt.cli import main as cli
from lra_spt.config.user_files import digest_of_texts
from lra_spt.data import examples as examples_lib
from lra_spt.files import checksums
from lra_spt.report.runs import record, run_folder
from lra_spt.report.study import submission
from lra_spt.report.study.any_folder import read_any

MIXER, HELPER = b'import helper\n\n\nclass Mixer:\r\n  pass\n', b'WIDTH = 3\n'
IDENTITY = {'task': 'stripes', 'regime': 'scratch', 'causal': False, 'protocol': 'clean', 'seed': 0}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  stripes.prepare_stripes(folder, examples=64)
  return folder


@pytest.fixture
def runs(data_dir, tmp_path):
  """A folder with two runs that trained a mixer from my_mixer.py, which imports helper.py."""
  (tmp_path / 'my_mixer.py').write_bytes(MIXER)
  (tmp_path / 'helper.py').write_bytes(HELPER)
  split = examples_lib.open_split('stripes', 'test', data_dir)
  label_N = split.gather(range(len(split)))['label']
  for seed in (0, 1):
    prediction_N = np.where(np.arange(len(label_N)) % 3 == seed, (label_N + 1) % 4, label_N)
    np.savez(tmp_path / 'p.npz', index=split.indices, label=label_N, prediction=prediction_N)
    folder, facts = (
      tmp_path / f'runs/seed{seed}',
      record.StatedFacts(model='mine', regime='scratch', seed=seed),
    )
    result = record.record(tmp_path / 'p.npz', folder, facts, 'stripes', data_dir)
    code = {'code': {'mixer': digest_of_texts([MIXER, HELPER]), 'task': 'fields:0123456789abcdef'}}
    shared = code | {'fingerprints': result['fingerprints']}
    config = IDENTITY | shared | {'seed': seed, 'model': {'name': 'mine'}, 'finetune': {}}
    result |= code | {'config': config, 'runtime': {'data_dir': str(data_dir)}}
    del result['recorded']
    run_folder.write_result(folder, result, dict(np.load(folder / 'predictions.npz')))
    checksums.write(folder / run_folder.CONFIG, config)
  return tmp_path / 'runs'


@pytest.fixture
def submit(runs, tmp_path, capsys):
  def submit(*flags, sources=('my_mixer.py', 'helper.py')):
    registered = [f'--register={tmp_path / name}' for name in sources]
    status = cli.main(['submit', f'--workdir={runs}', f'--out={tmp_path / "s.zip"}', *registered, *flags])
    captured = capsys.readouterr()
    return status, captured.out + captured.err, tmp_path / 's.zip'

  return submit


def verify(path, capsys, *flags):
  status = cli.main(['verify', str(path), *flags])
  captured = capsys.readouterr()
  return status, captured.out + captured.err


def changed(path, change):
  """Writes the members of a submission again after `change(members)`."""
  with zipfile.ZipFile(path) as packed:
    members = {info.filename: packed.read(info) for info in packed.infolist()}
  change(members)
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as packed:
    for name, content in members.items():
      packed.writestr(name, content)


def resealed(members, change=lambda result: None, **arrays):
  """Changes result and predictions of a run and corrects all checksums, as a cheater would."""
  stored = dict(np.load(io.BytesIO(members['seed0/predictions.npz']))) | arrays
  np.savez(file := io.BytesIO(), **stored)
  members['seed0/predictions.npz'] = file.getvalue()
  result = {key: value for key, value in json.loads(members['seed0/result.json']).items() if key != 'sha256'}
  change(result)
  sums = checksums.sealed(run_folder.pathlib.Path('result.json'), result)['sha256']
  digest = {'predictions.npz': checksums.hashlib.sha256(file.getvalue()).hexdigest()}
  members['seed0/result.json'] = json.dumps(result | {'sha256': sums | digest}).encode()


def test_round_trip(submit, runs, data_dir, tmp_path, capsys):
  status, printed, path = submit()
  assert status == 0, printed
  assert 'ok     stripes, mine, scratch, seed 0: accuracy 66.6 % over' in printed
  assert 'Labels of stripes: those of the file, because no --data_dir is given.' in printed
  assert 'code/helper.py is source that runs trained.' in printed
  first = path.read_bytes()
  assert submit()[2].read_bytes() == first
  status, printed = verify(path, capsys, f'--data_dir={data_dir}')
  assert status == 0
  assert f'those of the prepared set in {data_dir}' in printed
  assert printed.endswith('2 runs: good\n')
  status, printed = verify(path, capsys, f'--data_dir={tmp_path}')
  assert (status, f'there is no set of it in {tmp_path}' in printed) == (0, True)
  with submission.unpacked(path) as folder:
    assert str(data_dir) not in (folder / 'seed0/result.json').read_text()
    (ours,), (theirs,) = (read_any(place).cells.values() for place in (folder, runs))
    assert ours.arm.score == theirs.arm.score
  (runs / 'seed0/predictions.npz').unlink()
  status, printed, path = submit()
  assert status == 2
  assert 'nobody can check it' in printed
  assert path.read_bytes() == first


def test_sources_must_be_those_that_were_trained(submit, tmp_path):
  status, printed, _ = submit(sources=['my_mixer.py'])
  assert status == 1
  assert 'the source of its mixer (text:' in printed
  (tmp_path / 'other.py').write_text('# not used\n')
  status, printed, _ = submit(sources=['my_mixer.py', 'helper.py', 'other.py'])
  assert status == 0
  assert 'code/other.py is not compared' in printed
  (tmp_path / 'helper.py').write_text('WIDTH = 4\n')
  assert submit()[0] == 1


def shifted(members, name):
  stored = np.load(io.BytesIO(members['seed0/predictions.npz']))
  return {name: (stored[name] + 1) % 4}


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda m: m.update({'seed0/result.json': m['seed0/result.json'].replace(b'0.66', b'0.99')}), 'checksum'),
    (lambda m: m.update({'seed0/predictions.npz': m['seed1/predictions.npz']}), 'checksum'),
    (lambda m: m.pop('seed0/predictions.npz'), 'predictions.npz is missing'),
    (lambda m: resealed(m, lambda r: r['metrics']['test'].update(accuracy=0.99)), 'result.json says 99.0 %'),
    (lambda m: resealed(m, **shifted(m, 'prediction')), 'and predictions.npz 0.0 %'),
    (lambda m: resealed(m, prediction=np.array([{}])), 'is damaged and cannot be read'),
    (lambda m: resealed(m, lambda r: r.update(regime='masked')), 'config has another regime'),
    (lambda m: resealed(m, lambda r: r.update(fingerprints={})), 'has another fingerprints'),
    (lambda m: resealed(m, lambda r: r.update(pretrained={'run': '/etc', 'seed': 0})), 'lies outside'),
    (lambda m: resealed(m, lambda r: r.update(model='\x1b[2J', seed=3)), r'\x1b[2J'),
    (lambda m: m.update({'code/helper.py': b'evil()'}), 'the source of its mixer'),
    (lambda m: m.update({'seed0/encoder.safetensors': b'nothing'}), 'is no safetensors file'),
    (
      lambda m: m.update({'seed0/encoder.safetensors': safetensors.numpy.save({}, {'task': 'image'})}),
      'of another task or step',
    ),
  ],
)
def test_what_was_changed_is_seen(submit, capsys, change, sentence):
  path = submit()[2]
  changed(path, change)
  status, printed = verify(path, capsys)
  assert status == 1
  assert 'WRONG' in printed
  assert sentence in printed
  assert '/tmp' not in printed.replace(str(path), '')


def test_labels_are_those_of_the_set(submit, data_dir, capsys):
  """If labels and predictions are changed together, the score stays right. Only the prepared set shows it."""
  path = submit()[2]
  changed(path, lambda m: resealed(m, **shifted(m, 'label'), **shifted(m, 'prediction')))
  assert verify(path, capsys)[0] == 0
  status, printed = verify(path, capsys, f'--data_dir={data_dir}')
  assert status == 1
  assert 'another label than the prepared set' in printed
  path = submit()[2]
  changed(path, of_another_set)
  assert verify(path, capsys)[0] == 0
  status, printed = verify(path, capsys, f'--data_dir={data_dir}')
  assert status == 1
  assert 'its data have the fingerprint 01234567, those of stripes in' in printed


def of_another_set(members):
  del members['seed0/config.json']
  resealed(members, lambda result: result.update(fingerprints={'data': '0123456789'}, config=None))


def link():
  info = zipfile.ZipInfo('seed0/config.json')
  info.external_attr = (stat.S_IFLNK | 0o777) << 16
  return info


def bomb(name='predictions.npz'):
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as packed:
    packed.writestr(name, bytes(submission.MOST + 1))
  return file.getvalue()


@pytest.mark.parametrize(
  'members, sentence',
  [
    ({'../result.json': b'{}'}, 'leads out of its folder'),
    ({'/etc/result.json': b'{}'}, 'leads out of its folder'),
    ({'a\\..\\result.json': b'{}'}, 'leads out of its folder'),
    ({link(): b'/etc/passwd'}, 'which is a link'),
    ({'seed0/run.sh': b'rm'}, 'is no file of a run'),
    ({'code/a/mixer.py': b''}, 'is no file of a run'),
    ({'seed0/result.json': bytes(submission.MOST + 1)}, 'of 67,108,865 bytes unpacked'),
    ({'code/mixer.py': bytes(submission.MOST_SOURCE + 1)}, 'bytes unpacked'),
    ({'seed0/predictions.npz': bomb('index.npy')}, 'holds arrays of more than'),
    ({'result.json': b'{}', 'result.json/result.json': b'{}'}, 'with the name of a folder'),
    ({'code/mixer.py': b''}, 'holds no result.json'),
  ],
)
def test_files_that_could_do_harm_are_refused(tmp_path, capsys, members, sentence):
  path = tmp_path / 's.zip'
  with zipfile.ZipFile(path, 'w') as packed:
    for name, content in members.items():
      packed.writestr(name, content, zipfile.ZIP_DEFLATED)
  status, printed = verify(path, capsys)
  assert status == 2
  assert 'is not a submission' in printed
  assert sentence in printed
  assert printed.count('\n') == 1


def test_damaged_files_are_refused(submit, tmp_path, capsys):
  content = submit()[2].read_bytes()
  for number, damaged in enumerate([b'', b'text', content[:-30], content[:2000] + content[2100:]]):
    (path := tmp_path / f'{number}.zip').write_bytes(damaged)
    status, printed = verify(path, capsys)
    assert (status, 'is not a submission' in printed) == (2, True), printed
  assert verify(tmp_path / 'none.zip', capsys)[0] == 2
  assert 'works in folders only' in verify('gs://bucket/s.zip', capsys)[1]
