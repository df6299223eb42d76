"""The benchmarks start and explain themselves; the one for accelerators runs at toy size and resumes."""

import functools
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

from benchmarks import __main__ as all_benchmarks
from benchmarks import accelerator, accelerator_steps, harness

FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'benchmarks'
COMMANDS = sorted(all_benchmarks.BENCHMARKS)
NO_GPU = {'CUDA_VISIBLE_DEVICES': ''}  # also on a machine that has one


@pytest.fixture(scope='module')
def run_script(repository, compilation_cache):
  """Runs `python -m benchmarks NAME`; returns the finished process."""

  def run(name, *flags, **environment):
    return subprocess.run(
      [sys.executable, '-m', 'benchmarks', name, *flags],
      env=os.environ | compilation_cache | environment,
      cwd=repository,
      timeout=1500,  # a busy machine must not be a failure
      capture_output=True,
      text=True,
    )

  return run


@pytest.mark.parametrize('name', COMMANDS)
def test_help(name, capsys):
  """In this process, which has imported jax already; the toy runs below start `python -m`."""
  command = importlib.import_module(f'benchmarks.{name}')
  with pytest.raises(SystemExit) as exit:
    command.main(['--help'])
  assert exit.value.code == 0
  printed = capsys.readouterr().out
  assert printed.startswith(f'usage: python -m benchmarks {name} ')
  assert ' '.join(command.__doc__.split()) in ' '.join(printed.split())
  assert f'python -m benchmarks {name}' in command.__doc__


@pytest.mark.parametrize(
  'name, flags, sentence',
  [
    (
      'accelerator',
      ['--parts=kernels,games'],
      "there is no part 'games'; choose from tests, kernels, proofs, attention, benchmarks, profile, "
      'members, ssm, training, tune',
    ),
    ('accelerator', ['--minutes=kernels'], "--minutes is 'kernels'; write it as tests=2,training=10"),
    ('accelerator', ['--minutes=games=2'], "there is no part 'games'; choose from tests"),
    ('accelerator', ['--platform=cpu'], 'add --tiny'),
    ('ssm', ['--parts=steps,games'], "there is no part 'games'; choose from steps, memory, layer"),
    ('ssm', ['--contenders=s6'], "there is no contender 's6'; choose from s4, s4 plain"),
    (
      'small_runs',
      ['--only=image'],
      "there is no run 'image'; choose from s4, dlr, listops",
    ),
  ],
)
def test_wrong_usage(name, flags, sentence, capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(harness, 'RESULTS', tmp_path)
  with pytest.raises(SystemExit) as exit:
    importlib.import_module(f'benchmarks.{name}').main(flags)
  assert exit.value.code == 2
  assert sentence in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def samples(*seconds):
  return [{'seconds': wall, 'processor_seconds': processor} for wall, processor in seconds]


def test_ratios_are_taken_turn_by_turn():
  """A slow moment of the machine, which both meet in the same turn, moves the times and not the ratio."""
  above, below = samples((2, 1), (20, 3), (6, 6)), samples((1, 1), (10, 1), (3, 2), (99, 99))
  assert harness.ratios(above, below) == {'wall': 2.0, 'processor': 3.0}
  assert harness.ratios(above, below, scale=0.5) == {'wall': 1.0, 'processor': 1.5}
  assert harness.milliseconds(above, per=2) == {
    'milliseconds': 3000.0,
    'fastest_milliseconds': 1000.0,
    'processor_milliseconds': 1500.0,
    'rounds': 3,
  }


def test_contenders_take_turns():
  called = []
  taken = harness.turns({name: functools.partial(called.append, name) for name in 'ab'}, rounds=2)
  assert called == ['a', 'b'] * 3  # the first round is not counted
  assert [len(taken[name]) for name in 'ab'] == [2, 2]
  assert all(0 <= sample['seconds'] < 1 for sample in taken['a'] + taken['b'])


def test_what_takes_long_has_two_turns():
  class Stub:
    def __init__(self, seconds):
      self.seconds = seconds

    def turn(self):
      return {'seconds': self.seconds}

  started = {'fast': Stub(0.1), 'slow': Stub(harness.SLOW + 1)}
  taken = harness.workers_in_turns(started, rounds=4)
  assert {name: len(samples) for name, samples in taken.items()} == {'fast': 4, 'slow': 2}


def test_a_result_says_where_it_comes_from(tmp_path):
  report = harness.report('ssm', 'something', 'pytest', 'no_such_package', quick=True)
  assert report['command'] == 'python -m benchmarks ssm'
  assert report['versions']['pytest'] == pytest.__version__
  assert 'no_such_package' not in report['versions']
  assert report['hardware']['devices'] == jax.device_count()
  path = tmp_path / 'new' / 'out.json'
  harness.write(path, report)
  written = json.loads(path.read_text(encoding='utf-8'))
  assert written == report
  assert written['load_average_after'] >= 0
  with pytest.raises(ValueError, match='not JSON compliant'):
    harness.write(path, report | {'milliseconds': float('nan')})
  assert json.loads(path.read_text(encoding='utf-8')) == written
  assert [file.name for file in path.parent.iterdir()] == ['out.json']


def test_kernel_times():
  def thread(tid, name):
    return {'ph': 'M', 'name': 'thread_name', 'pid': 1, 'tid': tid, 'args': {'name': name}}

  def event(tid, name, microseconds):
    return {'ph': 'X', 'name': name, 'pid': 1, 'tid': tid, 'ts': 0, 'dur': microseconds}

  events = [thread(7, 'Stream #14(Compute)'), thread(8, 'python'), thread(9, 'Stream #15(MemcpyH2D)')]
  events += [event(7, 'attention', 2.0), event(7, 'attention', 3.0), event(8, 'train', 9.0)]
  events += [event(9, 'copy', 0.5), event(10, 'of a thread without a name', 1.0)]
  expected = {'attention': 5.0, 'copy': 0.5}
  assert accelerator_steps.kernel_times(events) == expected
  assert accelerator_steps.kernel_times({'traceEvents': events}) == expected


def test_accelerator_finds_packages_beside_the_repository(monkeypatch, tmp_path):
  options = accelerator.parse(['--platform=cpu', '--tiny', f'--workdir={tmp_path}'])
  monkeypatch.setenv('PYTHONPATH', '/packages')
  _, environment = accelerator.command_of('kernels', options, [])
  assert environment['PYTHONPATH'] == f'{harness.ROOT}{os.pathsep}/packages'
  monkeypatch.delenv('PYTHONPATH')
  _, environment = accelerator.command_of('kernels', options, [])
  assert environment['PYTHONPATH'] == str(harness.ROOT)


def test_accelerator_without_a_gpu(run_script, tmp_path):
  done = run_script(
    'accelerator', f'--output={tmp_path / "out.json"}', f'--workdir={tmp_path / "work"}', **NO_GPU
  )
  assert done.returncode == 2, done.stdout + done.stderr
  assert 'jax sees no GPU here; run this on a machine with an NVIDIA GPU' in done.stderr
  assert not (tmp_path / 'out.json').exists()


@pytest.fixture(scope='module')
def measure(run_script, tmp_path_factory):
  """Runs parts of the accelerator benchmark at toy size: (process, its output file)."""

  def run(*parts, folder=None):
    folder = folder or tmp_path_factory.mktemp('accelerator')
    done = run_script(
      'accelerator',
      '--platform=cpu',
      '--tiny',
      f'--parts={",".join(parts)}',
      f'--minutes={",".join(f"{part}=20" for part in parts)}',  # here nothing is measured
      f'--output={folder / "out.json"}',
      f'--workdir={folder / "work"}',
    )
    return done, folder / 'out.json'

  return run


@pytest.fixture(scope='module')
def tiny(measure):
  """(a function that runs the part about attention again, its output file)."""
  done, output = measure('attention')
  assert done.returncode == 0, done.stdout + done.stderr
  return lambda: measure('attention', folder=output.parent)[0], output


def check_attention(report):
  rows = {row['case']: row for row in report['parts']['attention']['rows']}
  assert len(rows) == 12
  assert 'not_run' in rows['attention tiny cudnn float32']  # cuDNN has 16-bit kernels only
  pallas, folded = rows['attention tiny pallas float32'], rows['attention tiny xla fold float32']
  assert pallas['floor_products'] == 2 * folded['floor_products']  # two sequences, one
  assert pallas['time_over_floor'] == pytest.approx(pallas['milliseconds'] / pallas['floor_products'])


def test_accelerator_at_toy_size(tiny):
  _, output = tiny
  report = json.loads(output.read_text(encoding='utf-8'))
  assert report['tiny'] is True
  assert report['hardware']['platform'] == 'cpu'
  assert report['versions']['jax']
  assert {name: part['status'] for name, part in report['parts'].items()} == {'attention': 'finished'}
  check_attention(report)


@pytest.mark.slow
def test_accelerator_all_parts_at_toy_size(measure):
  parts = 'kernels', 'proofs', 'attention', 'benchmarks', 'profile', 'members', 'ssm', 'training', 'tune'
  done, output = measure(*parts)
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads(output.read_text(encoding='utf-8'))
  statuses = {name: part['status'] for name, part in report['parts'].items()}
  assert statuses == dict.fromkeys(parts, 'finished')
  check_attention(report)
  kernels = report['parts']['kernels']['rows']
  assert len(kernels) == 12
  assert all(row['ok'] and 0 < row['largest'] <= row['tolerance'] for row in kernels)
  (proofs,) = report['parts']['proofs']['rows']  # nothing to choose between on a CPU
  assert (proofs['case'], proofs['calls']) == ('configs/demo.py', 0)
  rows = {row['case']: row for row in report['parts']['benchmarks']['rows']}
  assert 'not_run' in rows['attention tiny cudnn bfloat16']  # cuDNN needs a GPU
  for case in (
    'attention tiny blockwise float32',
    'step demo float32 2 per dispatch',
    'step demo float32 1 per dispatch, examples on the device',
  ):
    assert rows[case]['milliseconds'] > 0
    assert rows[case]['teraflops_per_second'] > 0
    assert {'commit', 'date'} <= rows[case].keys()
  (tuned,) = report['parts']['tune']['rows']
  assert re.fullmatch(r"\('cpu', 16, 2\): Tiles\((Tile\(\d+, \d+, 4, \d\)(, )?){3}\),", tuned['line'])
  assert tuned['times_faster_than_before'] >= 1
  (row,) = report['parts']['members']['rows']
  assert row['together']['milliseconds'] > 0
  default, loop = report['parts']['profile']['rows']
  assert loop['case'] == f'{default["case"]}, layers in a loop'
  assert default['kernels'] == {}  # a CPU has no streams
  scratch, masked = report['parts']['training']['rows']
  assert (list(scratch['stages']), list(masked['stages'])) == (['finetune'], ['pretrain', 'finetune'])
  plain, ours = report['parts']['ssm']['rows']
  assert plain['case'].endswith('s4 plain float32')
  assert ours['times_faster_than s4 plain'] == pytest.approx(plain['milliseconds'] / ours['milliseconds'])


@pytest.mark.slow
def test_accelerator_resumes(tiny):
  """A run that was killed in the middle goes on with what is missing and keeps what it had."""
  again, output = tiny
  report = json.loads(output.read_text(encoding='utf-8'))
  part = report['parts']['attention']
  half = len(part['rows']) // 2
  cases = {row['case'] for row in part['rows']}
  measured = {row['case'] for row in part['rows'][:half] if 'milliseconds' in row}
  # Dates tell which rows were not measured again.
  part |= {'status': 'running', 'rows': [row | {'date': 'before'} for row in part['rows'][:half]]}
  output.write_text(json.dumps(report), encoding='utf-8')
  done = again()
  assert done.returncode == 0, done.stdout + done.stderr
  rows = json.loads(output.read_text(encoding='utf-8'))['parts']['attention']['rows']
  assert {row['case'] for row in rows} == cases
  assert len(rows) == len(cases) == 12
  # Exactly what had been measured; what could not run is tried again.
  assert {row['case'] for row in rows if row['date'] == 'before'} == measured
  assert measured
  assert 'attention: finished before' in again().stdout


def test_accelerator_keeps_results_of_another_machine(tiny):
  again, output = tiny
  text = output.read_text(encoding='utf-8')
  other = json.loads(text)
  other['device']['device_kind'] = 'NVIDIA H200'
  output.write_text(json.dumps(other), encoding='utf-8')
  done = again()
  assert done.returncode == 1
  assert 'holds results of another kind (device' in done.stderr
  assert json.loads(output.read_text(encoding='utf-8')) == other
  output.write_text(text, encoding='utf-8')


@pytest.mark.slow
def test_field_at_toy_size(run_script, tmp_path):
  path = tmp_path / 'out.json'
  flags = ['--quick', '--causal', '--sizes=8x1024', f'--json={path}']
  done = run_script('field', *flags, '--mixers=none,linformer')
  assert done.returncode == 0, done.stderr
  none, linformer = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert none['parameters'] > 0
  assert none['times_of_attention']['wall'] > 0
  assert "'linformer' has no causal form" in linformer['not_run']
  done = run_script('field', *flags, '--resume', '--mixers=none,mingru,mega torch')
  assert done.returncode == 0, done.stderr
  rows = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert rows[:2] == [none, linformer]
  assert [row['mixer'] for row in rows] == ['none', 'linformer', 'mingru', 'mega torch']
  if importlib.util.find_spec('torch'):
    assert rows[3]['times_of_mega']['wall'] > 0
  else:
    assert "No module named 'torch'" in rows[3]['not_run']


@pytest.mark.slow
def test_ways_at_toy_size(run_script, tmp_path):
  path = tmp_path / 'out.json'
  done = run_script('ways', '--quick', '--sizes=8x1024', '--mixers=mamba,performer', f'--json={path}')
  assert done.returncode == 0, done.stderr
  mamba, performer = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert (mamba['causal'], performer['causal']) == (False, True)
  assert list(mamba['ways']) == ['ours', 'scan=associative', 'scan=chunked']
  assert performer['ways'].keys() > {'ours', 'chunk=16', 'chunk=length'}
  # All weights are there at once, so it was another program that ran.
  assert (
    performer['ways']['chunk=length']['temporary_megabytes']
    > performer['ways']['ours']['temporary_megabytes']
  )
  for row in (mamba, performer):
    fastest = min(way['times_of_ours']['wall'] for way in row['ways'].values())
    assert row['times_of_cheapest']['wall'] == pytest.approx(1 / fastest, abs=1e-3)


def run_ssm(run_script, path, *flags):
  """The report of a run at toy size, its steps by contender."""
  done = run_script('ssm', '--quick', f'--json={path}', *flags)
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads(path.read_text(encoding='utf-8'))
  assert report['quick'] is True
  assert {'commit', 'date', 'hardware'} <= report.keys()
  assert report['versions']['jax']
  return report, {row['contender']: row for row in report['steps']}


@pytest.mark.slow
def test_ssm_at_toy_size(run_script, tmp_path):
  _, steps = run_ssm(run_script, tmp_path / 'out.json', '--parts=steps', '--contenders=s5 64,s5 64 peer')
  ours, peer = steps['s5 64'], steps['s5 64 peer']
  ratio = ours['times_faster_than']['s5 64 peer']['wall']
  assert ratio == pytest.approx(peer['milliseconds'] / ours['milliseconds'], abs=0.05)
  assert ours['temporary_megabytes'] > 0
  assert ours['peak_megabytes'] > 0


@pytest.mark.slow
def test_ssm_all_parts_at_toy_size(run_script, tmp_path):
  report, steps = run_ssm(run_script, tmp_path / 'out.json')
  assert len(steps) == 11
  assert all('not_run' in row or 1 < row['first_loss'] < 5 for row in steps.values())  # log 10 = 2.3
  assert [row['contender'] for row in report['memory']] == ['dlr kernel', 's4']
  assert {row['part'] for row in report['layer']} == {'whole', 'kernel', 'convolution', 'output'}


@pytest.mark.slow
def test_huge_pages_at_toy_size(run_script, tmp_path):
  path = tmp_path / 'out.json'
  done = run_script('huge_pages', '--quick', '--contenders=attention', f'--json={path}')
  assert done.returncode == 0, done.stdout + done.stderr
  (row,) = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert row['contender'] == 'attention'
  ratio = row['small']['milliseconds'] / row['huge']['milliseconds']
  assert row['times_faster']['wall'] == pytest.approx(ratio, rel=0.05)


def test_data_at_toy_size(run_script, tmp_path):
  done = run_script('data', '--quick', f'--json={tmp_path / "out.json"}')
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads((tmp_path / 'out.json').read_text(encoding='utf-8'))
  assert report['quick'] is True
  assert {'date', 'commit', 'hardware', 'versions', 'load_average_after', 'threads'} <= report.keys()
  rows = {row['set']: row for row in report['rows']}
  targets = {name: row['target'] for name, row in rows.items() if row['target']}
  assert targets == {'bytes_1024': 20_000, 'images_16384': 3_500}
  assert rows.keys() - targets.keys() == {'tokens_2048', 'pairs_4000', 'images_65536'}
  for row in rows.values():
    assert row['ratio'] == pytest.approx(row['first_pass'] / row['tfds_and_grain'], abs=0.01)
    assert row['megabytes_per_second'] == pytest.approx(row['first_pass'] * row['bytes'] / 1e6, abs=0.6)
    assert min(row['from_memory'], row['placing'], row['host_microseconds'], row['device_microseconds']) > 0


@pytest.mark.slow
def test_saves_at_toy_size(run_script, tmp_path):
  flags = '--cases=image:model=s4', '--processes=1,2', '--devices=1,2', '--rounds=1'
  ran = run_script('saves', *flags, f'--json={tmp_path / "saves.json"}')
  assert ran.returncode == 0, ran.stderr
  rows = json.loads((tmp_path / 'saves.json').read_text())['rows']
  assert [(row['processes'], row['devices']) for row in rows] == [(1, 1), (1, 2), (2, 1)]
  for row in rows:
    times = [row[name] for name in ('foreground', 'defaults', 'background', 'written')]
    assert min(row['megabytes'], row['arrays'], *(each['milliseconds'] for each in times)) > 0
    assert row['first'].keys() == {'foreground', 'defaults'}


@pytest.mark.slow
def test_block_attention_at_toy_size(run_script, tmp_path):
  done = run_script('block_attention', '--quick', f'--json={tmp_path / "out.json"}')
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads((tmp_path / 'out.json').read_text(encoding='utf-8'))
  assert report['quick'] is True
  assert {'date', 'hardware', 'versions', 'beside'} <= report.keys()
  rows = {row['case']: row for row in report['rows']}
  assert rows['neighbours short']['visible_pairs'] == 10 * 32**2  # 4 blocks: 2 + 3 + 3 + 2 neighbours
  assert rows['neighbours long']['visible_pairs'] == 46 * 32**2
  assert rows['table short']['visible_pairs'] == rows['neighbours short']['visible_pairs']
  _, faster, memory = report['targets']
  ratio = rows['full short']['milliseconds'] / rows['neighbours short']['milliseconds']
  assert faster['measured']['wall'] == pytest.approx(ratio, rel=0.05)  # times are rounded to 1 us
  share = rows['neighbours short']['temporary_bytes'] / (4 * 128**2)
  assert memory['measured'] == pytest.approx(share, abs=1e-5)


@pytest.mark.slow
def test_attention_at_toy_size(run_script, tmp_path):
  done = run_script('attention', '--quick', f'--json={tmp_path / "out.json"}')
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads((tmp_path / 'out.json').read_text(encoding='utf-8'))
  rows = {row['attention']: row for row in report['rows']}
  assert rows.keys() == {'blockwise', 'torch', 'xla'}
  # The same weights and tokens, so the same loss.
  assert rows['blockwise']['first_loss'] == pytest.approx(rows['xla']['first_loss'], rel=1e-5)
  assert rows['blockwise']['peak_megabytes'] > 0
  torch = rows['torch']
  assert ('torch' in report['versions']) != ('not_run' in torch)
  assert ('time_over_torch' in rows['xla']) != ('not_run' in torch)
