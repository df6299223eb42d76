"""Every benchmark runs at toy size and writes a result, and committed results are readable."""

import argparse
import functools
import json
import os
import re
import subprocess
import sys

import pytest

from benchmarks import __main__ as all_benchmarks
from benchmarks import accelerator, accelerator_steps, epoch, field, harness, trained
from lra_spt.config import loading
from lra_spt.runs import build

HEAD = {'what', 'command', 'date', 'commit', 'hardware', 'versions', 'load_average_after'}
IMAGE = '--cases=image:model=s4'
# Flags of a toy run, and keys of each row of its result.
ROWS = {
  'field_compiled': (['--mixers=s5', '--tasks=image', '--limit=0.1'], {'mixer', 'task', 'not_run'}),
  'configs_compiled': (['--cases=image', '--models=s4', '--limit=0.1'], {'topology', 'pretrain', 'finetune'}),
  'chips': (['--topologies=v5e:2x2', '--models=s4', '--limit=0.1'], {'model', 'topology', 'not_run'}),
  'tpu_traffic': (['--cases=s4', '--tasks=image', '--limit=0.1'], {'case', 'task', 'not_run'}),
  'numerics': (['--only=test_fft_conv and 16384'], {'test', 'kernel', 'positions', 'values', 'gradients'}),
  'study_costs': (['--studies=figure5'], {'study', 'runs', 'stages', 'steps', 'operations'}),
}
OTHERS = {  # keys of the result
  'digests': (['--megabytes=1', '--config=configs/demo.py:regime=masked'], {'checkpoint', 'set'}),
  'large_set': (['--gigabytes=0.01'], {'examples', 'peak_memory_mb'}),
}
SLOW_ROWS = {
  'slopes': (['--mixers=attention', '--axes=members'], {'sizes', 'milliseconds', 'gigaflops', 'slopes'}),
  'members': ([IMAGE, '--members=2', '--steps=1', '--rounds=1'], {'alone', 'together', 'vectorised'}),
  'attention': (['--quick'], {'batch', 'length', 'attention'}),
  'block_attention': (['--quick'], {'case', 'visible_pairs', 'milliseconds', 'temporary_bytes'}),
  'field': (['--quick', '--sizes=8x1024', '--mixers=none,mingru'], {'mixer', 'size', 'times_of_attention'}),
  'ways': (['--quick', '--sizes=8x1024', '--mixers=performer'], {'causal', 'ways', 'times_of_cheapest'}),
  'huge_pages': (['--quick', '--contenders=attention'], {'contender', 'huge', 'small', 'times_faster'}),
  'saves': (
    [IMAGE, '--processes', '1', '2', '--devices=1', '--rounds=1'],
    {'foreground', 'written', 'first'},
  ),
  'processes': (['--models=transformer', '--counts', '1', '2'], {'model', 'by_processes'}),
  'epoch': (
    ['--cases=mini/image:model=s4', '--rounds=1'],
    {'seconds', 'examples', 'epoch_seconds', 'shares'},
  ),
}
SLOW_OTHERS = {
  'generator': (['--images=2'], {'images', 'first_image_seconds', 'resolutions'}),
  'ssm': (['--quick', '--contenders=s5 64,s5 64 peer'], {'steps', 'memory', 'layer'}),
  'data_scale': (['--images=16', '--resolutions', '128'], {'images', 'resolutions'}),
  'first_step': (['--rounds=1'], {'cache', 'commands'}),
}


@pytest.fixture(scope='module')
def run(repository, compilation_cache):
  """run(name, *flags): the finished process of a benchmark, without a GPU."""

  def run(name, *flags):
    environment = os.environ | compilation_cache | {'CUDA_VISIBLE_DEVICES': ''}
    command = [sys.executable, '-m', 'benchmarks', name, *flags]
    options = {'cwd': repository, 'capture_output': True, 'text': True, 'timeout': 1500}
    return subprocess.run(command, env=environment, **options, check=False)

  return run


def slow(cases):
  return [pytest.param(name, *case, marks=pytest.mark.slow) for name, case in cases.items()]


@pytest.mark.parametrize(
  'name, flags, keys',
  [
    *((name, *case) for name, case in (ROWS | OTHERS).items()),
    *slow(SLOW_ROWS | SLOW_OTHERS),
    ('data', ['--quick'], {'first_pass', 'from_memory', 'tfds_and_grain', 'device_microseconds'}),
  ],
)
def test_toy_run(name, flags, keys, run, tmp_path):
  done = run(name, *flags, f'--json={tmp_path / "out.json"}')
  assert done.returncode == 0, done.stdout + done.stderr
  result = json.loads((tmp_path / 'out.json').read_text(encoding='utf-8'))
  assert result.keys() >= HEAD
  assert result['command'].startswith(f'python -m benchmarks {name}')
  if name in OTHERS | SLOW_OTHERS:
    assert result.keys() >= keys
  else:
    assert result['rows']
    assert all(row.keys() >= keys for row in result['rows'])


def test_page_of_a_study(run):
  done = run('study_page', '--runs=20', '--examples=50')
  assert done.returncode == 0, done.stderr
  assert '50 runs' in done.stdout  # one seed of each cell


@pytest.mark.parametrize('name', [name for name in all_benchmarks.BENCHMARKS if name != 'accelerator'])
def test_unknown_flag_is_refused(name, capsys, monkeypatch, tmp_path):
  monkeypatch.setattr(harness, 'RESULTS', tmp_path)
  with pytest.raises(SystemExit) as exit:
    all_benchmarks.main([name, '--nonsense'])
  assert exit.value.code == 2
  assert f'usage: python -m benchmarks {name} ' in capsys.readouterr().err


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['nope'], "there is no benchmark 'nope'; choose from accelerator, attention"),
    (['ssm', '--parts=steps,games'], "there is no 'games'; choose from steps, memory, layer"),
    (['accelerator', '--only=games'], "there is no 'games'; choose from tests, errors"),
    (['accelerator', '--minutes=steps'], "--minutes is 'steps'; write it as tests=2,steps=10"),
    (['accelerator', '--minutes=games=2'], "there is no part 'games'; choose from tests"),
  ],
)
def test_wrong_usage(words, sentence, capsys):
  with pytest.raises(SystemExit) as exit:
    all_benchmarks.main(words)
  assert exit.value.code == 2
  assert sentence in capsys.readouterr().err


def test_list_names_results(capsys):
  assert all_benchmarks.main([]) == 0
  printed = capsys.readouterr().out
  assert re.search(r'^chips .*: chips_compiled.json 2026', printed, re.MULTILINE)
  assert len(printed.splitlines()) == len(all_benchmarks.BENCHMARKS)


def test_committed_results_name_their_command():
  paths = sorted(harness.RESULTS.glob('*.json'))
  assert len(paths) > 40
  for path in paths:
    command = json.loads(path.read_text(encoding='utf-8')).get('command') or ''
    if name := re.match(r'python -m benchmarks (\S+)', command):
      assert name[1] in all_benchmarks.BENCHMARKS, path.name
    assert not re.search(r'benchmarks[./]', command), path.name


def samples(*seconds):
  return [{'seconds': wall, 'processor_seconds': processor} for wall, processor in seconds]


def test_ratios_are_taken_turn_by_turn():
  """A slow moment of the machine, which both meet in the same turn, moves the times and not the ratio."""
  above, below = samples((2, 1), (20, 3), (6, 6)), samples((1, 1), (10, 1), (3, 2), (99, 99))
  assert harness.ratios(above, below) == {'wall': 2.0, 'processor': 3.0}
  assert harness.ratios(above, below, scale=0.5) == {'wall': 1.0, 'processor': 1.5}


def test_contenders_take_turns():
  called = []
  taken = harness.turns({name: functools.partial(called.append, name) for name in 'ab'}, rounds=2)
  assert called == ['a', 'b'] * 3  # the first round is not counted
  assert [len(taken[name]) for name in 'ab'] == [2, 2]


def test_measured_rows_stay(tmp_path):
  path, measured = tmp_path / 'rows.json', []

  def measure(model):
    measured.append(model)
    return {'seconds': len(measured)}

  cases = [{'model': model} for model in ('s4', 's5')]
  given = argparse.Namespace(json=path, resume=True)
  harness.fill(given, {'commit': 'a', 'date': '2026-11-24'}, cases[:1], measure)
  harness.fill(given, {'commit': 'b', 'date': '2026-11-25'}, cases, measure)
  assert measured == ['s4', 's5']
  rows = json.loads(path.read_text())['rows']
  assert [(row['model'], row.get('commit')) for row in rows] == [('s4', 'a'), ('s5', None)]


def test_slope_of_a_power():
  sizes = [1, 2, 4, 8]
  assert field.slope(sizes, [3 * size**1.5 for size in sizes]) == 1.5
  assert field.slope(sizes, [1.0, 2.0, 4.0, None]) == 1.0  # the last did not run
  assert field.slope(sizes, [1.0, 2.0, None, None]) is None


def test_minutes_follow_from_a_shortened_run():
  """2,500 and 1,500 steps of 0.1 s with 5 and 6 validations of 2 s, beside 40 s of everything else."""
  spent = {'steps': 20.0, 'data': 5.0, 'evaluation': 3.0, 'checkpoints': 1.0, 'compiling': 9.0, 'other': 1.0}
  whole = loading.load('configs/mini/listops.py:model=s4,regime=masked')
  row = epoch.whole_run(40 + 2 * (25 + 4), dict.fromkeys(epoch.STAGES, spent), whole)
  assert row['minutes'] == round((40 + 4_000 * 0.1 + (5 + 6 + 2) * 2) / 60, 1)


def test_configs_of_small_runs():
  for spec, overrides in trained.arms().values():
    assert loading.load(spec, overrides).model.width in (32, 64)


def test_kernel_times():
  def thread(tid, name):
    return {'ph': 'M', 'name': 'thread_name', 'pid': 1, 'tid': tid, 'args': {'name': name}}

  def event(tid, name, microseconds):
    return {'ph': 'X', 'name': name, 'pid': 1, 'tid': tid, 'ts': 0, 'dur': microseconds}

  events = [thread(7, 'Stream #14(Compute)'), thread(8, 'python')]
  events += [event(7, 'attention', 2.0), event(7, 'attention', 3.0), event(8, 'train', 9.0)]
  assert accelerator_steps.kernel_times({'traceEvents': events}) == {'attention': 5.0}


def test_accelerator_lists_its_parts(capsys):
  assert accelerator.run_accelerator(['--list']) == 0
  printed = capsys.readouterr().out
  assert len(printed.splitlines()) == len(accelerator.PARTS)
  assert re.search(r'^tests .* \(finished, 1 rows\)$', printed, re.MULTILINE)


def test_configs_of_measured_steps():
  """A name that is wrong would be found on the GPU only, since --dry has other configs."""
  cases = accelerator_steps.step_cases(dry=False)
  assert len(cases) == 24
  for spec, overrides, *_ in cases.values():
    build.resolve(loading.load(spec, overrides))
  for spec in accelerator_steps.PROFILED:
    build.resolve(loading.load(f'{spec},regime=scratch'))
  for spec, _ in accelerator_steps.proofs(argparse.Namespace(dry=False)):
    build.resolve(loading.load(spec))


def test_a_failed_case_does_not_end_a_part(monkeypatch, capsys, tmp_path):
  def fails():
    raise ValueError('planted')

  part = lambda options: iter([('bad', fails), ('good', lambda: {'milliseconds': 1})])  # noqa: E731
  monkeypatch.setattr(accelerator_steps, 'PARTS', {'steps': part})
  accelerator.serve('steps', argparse.Namespace(output=tmp_path / 'none.json'))
  rows = [json.loads(line.removeprefix(accelerator.ROW)) for line in capsys.readouterr().out.splitlines()]
  assert rows == [
    {'case': 'bad', 'not_run': 'ValueError: planted'},
    {'case': 'good', 'milliseconds': 1},
  ]


def test_a_failed_part_does_not_end_the_command(monkeypatch, capsys, tmp_path):
  def run_part(part, options, arguments, keep):
    if part == 'machine':
      hardware = {'platform': 'gpu', 'device_kind': 'planted', 'devices': 1}
      keep({'case': 'machine', 'hardware': hardware, 'versions': {}})
    if part == 'steps':
      keep({'case': 'one', 'milliseconds': 1})
    return ('failed', 'ValueError: planted') if part == 'errors' else ('finished', '')

  monkeypatch.setattr(accelerator, 'run_part', run_part)
  flags = ['--only=errors,steps', f'--output={tmp_path / "out.json"}', f'--workdir={tmp_path}']
  assert accelerator.run_accelerator(flags) == 1
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == f'errors: failed after 0 s: ValueError: planted ({tmp_path / "errors"}.log)'
  assert lines[2] == 'steps: finished after 0 s'
  report = json.loads((tmp_path / 'out.json').read_text(encoding='utf-8'))
  assert [part['status'] for part in report['parts'].values()] == ['failed', 'finished']


@pytest.fixture(scope='module')
def measure(run, tmp_path_factory):
  """measure(part, ...): (process, output file) of parts of `accelerator --dry`."""

  def measure(*parts, folder=None):
    folder = folder or tmp_path_factory.mktemp('accelerator')
    flags = [f'--only={",".join(parts)}', f'--output={folder / "out.json"}', f'--workdir={folder / "work"}']
    return run('accelerator', '--dry', *flags), folder / 'out.json'

  return measure


@pytest.mark.slow
def test_accelerator_resumes(measure):
  """A run that was killed goes on with what is missing, and refuses the results of another machine."""
  done, output = measure('attention')
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads(output.read_text(encoding='utf-8'))
  part = report['parts']['attention']
  assert (part['status'], len(part['rows'])) == ('finished', 32)
  half = part['rows'][:16]
  measured = {row['case'] for row in half if 'milliseconds' in row}
  part |= {'status': 'running', 'rows': [row | {'date': 'before'} for row in half]}
  output.write_text(json.dumps(report), encoding='utf-8')
  done, _ = measure('attention', folder=output.parent)
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads(output.read_text(encoding='utf-8'))
  rows = report['parts']['attention']['rows']
  assert len(rows) == 32
  assert {row['case'] for row in rows if row['date'] == 'before'} == measured
  report['device']['device_kind'] = 'NVIDIA H200'
  output.write_text(json.dumps(report), encoding='utf-8')
  done, _ = measure('attention', folder=output.parent)
  assert done.returncode == 1
  assert 'holds results of another kind (device' in done.stderr
  assert json.loads(output.read_text(encoding='utf-8')) == report


@pytest.mark.slow
def test_accelerator_all_parts(measure):
  parts = [*accelerator.PARTS]
  done, output = measure(*parts)
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads(output.read_text(encoding='utf-8'))
  assert {name: part['status'] for name, part in report['parts'].items()} == dict.fromkeys(parts, 'finished')
  needs_gpu = 'attention', 'recurrences'  # kernels, and peers that may be missing
  for name in set(parts) - set(needs_gpu):
    assert all('not_run' not in row for row in report['parts'][name]['rows']), name
  for row in report['parts']['recurrences']['rows']:
    assert row.get('ok') or not re.search(
      'ours|associative|chunked|sequential|pallas|fft$|matmul', row['case']
    )
  (tuned,) = report['parts']['tune']['rows']
  assert re.fullmatch(r"\('cpu', 16, 2\): Tiles\((Tile\(\d+, \d+, 4, \d\)(, )?){3}\),", tuned['line'])


def test_accelerator_without_a_gpu(run, tmp_path):
  done = run('accelerator', f'--output={tmp_path / "out.json"}', f'--workdir={tmp_path / "work"}')
  assert done.returncode == 2, done.stdout + done.stderr
  assert 'jax sees no GPU here; run this where jax has one, or add --dry' in done.stderr
  assert not (tmp_path / 'out.json').exists()
