"""The report reads run folders and nothing else: no jax, no tasks; runs of any regime, finished or not."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from lra_spt.cli import main as cli
from lra_spt.errors import DamagedFile
from lra_spt.report import compare, page, views
from lra_spt.report.pages import colours, styles
from lra_spt.report.runs import restored
from lra_spt.report.runs.run import collect
from lra_spt.report.study import arms as tables
from lra_spt.report.text import text_table

ALONE = """
import sys
from lra_spt.report import page, text
from lra_spt.report.runs import unfinished
loaded = {name for name in sys.modules if name.split('.')[0] == 'jax' or name.startswith('lra_spt.')}
foreign = {name for name in loaded if name.startswith(('jax', 'lra_spt.data', 'lra_spt.config.protocol'))}
assert not foreign, foreign
"""
HELP = """
import sys
from lra_spt.cli import main as cli
try:
  cli.main(['report', '--help'])
except SystemExit as end:
  assert end.code == 0
slow = {'jax', 'numpy', 'scipy', 'matplotlib', 'jinja2', 'PIL'} & {*sys.modules}
assert not slow, slow
"""


@pytest.mark.parametrize('script', [ALONE, HELP])
def test_imports_are_few(script, repository):
  done = subprocess.run([sys.executable, '-c', script], cwd=repository, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


def test_the_table_of_two_runs_waits_for_no_library_of_charts_or_statistics(write_run, tmp_path, repository):
  write_run('a', accuracy=0.3)
  write_run('b', accuracy=0.5, regime='masked')
  script = (
    'import pathlib, sys\n'
    'from lra_spt.report import text\n'
    'from lra_spt.report.survey import survey\n'
    f'print(text.text_table(survey(pathlib.Path({str(tmp_path)!r})).runs))\n'
    "print({'scipy', 'matplotlib', 'jax'} & {*sys.modules})\n"
  )
  done = subprocess.run([sys.executable, '-c', script], cwd=repository, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert 'masked' in done.stdout
  assert done.stdout.endswith('\nset()\n')


def test_a_regime_from_outside_is_reported(write_run, tmp_path):
  write_run('s', accuracy=0.3)
  write_run('u', accuracy=0.5, regime='unshuffle')
  runs = collect(tmp_path)
  (group,) = tables.summarise(runs)
  assert [(arm.name, arm.pretrained) for arm in group.arms] == [
    ('scratch', False),
    ('unshuffle self-pretraining', True),
  ]
  assert [(gain.arm.name, gain.against.name) for gain in group.gains] == [
    ('unshuffle self-pretraining', 'scratch')
  ]
  assert tables.answer(group)[0].startswith('The run of transformer on toy with unshuffle self-pretraining')
  assert 'unshuffle self-pretraining' in page.write_report(runs, tmp_path / 'r.html', 'T').read_text()


def test_one_seed_is_a_verdict_on_runs_only(write_study):
  for seeds, verdicts in (
    ((0,), {'this run better', 'this run worse', 'not significant'}),
    ((1, 2, 3), {'better', 'worse', 'not significant'}),
  ):
    folder = write_study(seeds, ('scratch', 'masked', 'causal'))
    runs = [run for run in collect(folder) if run.seed in seeds]
    (group,) = tables.summarise(runs)
    assert {gain.verdict for gain in group.gains} <= verdicts
    said = ' '.join(tables.answer(group))
    assert ('another seed may reverse the result' in said) == (len(seeds) == 1)
    assert ('self-pretraining raised the test accuracy' in said) == (len(seeds) > 1)


def test_what_a_run_says_of_itself_is_used(write_run, tmp_path):
  facts = {'published': {'task': 'text', 'model': 's4'}}
  write_run('a', task='text_2048', model='my_s4', facts=facts)
  write_run('b', task='image', model='s4', facts={'published': None})
  write_run('c', task='image', model='transformer')  # as an older run, which does not say
  groups = {'name': 'horses', 'members': 'strides'}
  write_run('d', task='pulse', classes=0, groups=9, facts={'groups': groups})
  by_task = {(group.task, group.model): group.arms[0] for group in tables.summarise(collect(tmp_path))}
  assert by_task['text_2048', 'my_s4'].published.value == 86.82
  assert by_task['image', 's4'].published is None
  assert by_task['image', 'transformer'].published.value == 42.44
  assert '9 horses' in by_task['pulse', 'transformer'].score.method
  words = page.write_report(collect(tmp_path), tmp_path / 'r.html', 'T').read_text()
  assert 'Strides of one group are right or wrong together, so the intervals count groups' in words


@pytest.mark.parametrize('facts, said', [({}, True), ({'splits': 'files'}, False)])
def test_examples_without_groups(write_run, tmp_path, facts, said):
  """Of an older run nobody knows whether its examples are independent; a newer one would say."""
  write_run('a', classes=0, facts=facts)
  words = page.write_report(collect(tmp_path), tmp_path / 'r.html', 'T').read_text()
  assert ('predictions.npz does not say which belong together' in words) == said


@pytest.mark.parametrize(
  'facts',
  [
    {'cautions': 'all of it'},
    {'cautions': [1]},
    {'groups': {'name': 3}},
    {'groups': {'name': 'patients', 'members': 4}},
    {'published': {'task': 'text'}},
    {'published': 'text'},
    {'regime': 7},
    {'metrics': {'test': {'accuracy': '0.4', 'examples': 500}}},
    {'metrics': {'test': {'accuracy': 0.4}}},
    {'metrics': {}},
    {'metrics': {'validation': [], 'test': {'accuracy': 0.4, 'examples': 500}}},
    {'metrics': {'test': {'accuracy': float('nan'), 'examples': 500}}},
  ],
)
def test_results_that_cannot_be_read_are_named(write_run, tmp_path, facts):
  write_run('a', facts=facts)
  with pytest.raises(DamagedFile, match=r'result\.json is not the result of a run'):
    collect(tmp_path)


def test_kernels_that_proved_themselves_are_named_on_the_page(write_run, tmp_path):
  folder = write_run('a')
  words = page.write_report(collect(tmp_path), tmp_path / 'r.html', 'T').read_text()
  assert 'Proven kernels' not in words
  stages = json.loads((folder / 'result.json').read_text())['stages']
  stages['finetune']['kernels'] = {'linear scan: a 2 x 8 float32': 'pallas', 'attention: <q>': 'cudnn'}
  write_run('b', seed=1, facts={'stages': stages})
  words = page.write_report(collect(tmp_path), tmp_path / 'r.html', 'T').read_text()
  assert 'pallas runs linear scan: a 2 x 8 float32; cudnn runs attention: &lt;q&gt;' in words


def test_pretraining_of_another_run_lies_there(write_run, tmp_path):
  other = write_run('other', regime='masked')
  mine = write_run('mine', regime='masked', seed=1, facts={'pretrained': {'run': str(other), 'seed': 0}})
  (mine / 'pretrain-0a1b2c3e' / 'metrics.jsonl').unlink()
  runs = collect(tmp_path)
  steps, _ = runs[1].curves['pretrain']['validation']['accuracy']
  assert steps[-1] == 800
  assert f'{other}' in page.write_report(runs, tmp_path / 'r.html', 'T').read_text()


def test_styles_belong_to_arms():
  own = [(regime, regime == 'causal', regime, True) for regime in ('scratch', 'masked', 'causal')]
  others = [
    ('scratch', True, 'scratch, causal form', True),
    ('scratch', False, 'scratch, compute-tied', False),
    ('masked', False, 'masked, 800 steps', False),
    ('unshuffle', False, 'unshuffle', True),
    ('rotate', False, 'rotate', True),
  ]
  every = styles.styles(own + others)
  assert len(set(every.values())) == len(every)
  for arm in own + others:
    assert styles.styles([arm])[arm[:3]] == every[arm[:3]] or arm[0] in ('unshuffle', 'rotate')
  assert every['masked', False, 'masked'].colour == colours.BLUE
  assert every['masked', False, 'masked, 800 steps'].colour == colours.BLUE
  assert every['causal', True, 'causal'].colour == colours.ORANGE
  assert styles.of_regime('masked') == every['masked', False, 'masked']
  # Two regimes from outside never look alike, and one alone looks as `lra-spt kernels` draws it.
  assert every['unshuffle', False, 'unshuffle'].colour != every['rotate', False, 'rotate'].colour
  assert styles.styles([others[3]])['unshuffle', False, 'unshuffle'] == styles.of_regime('unshuffle')


def test_the_key_draws_lines_as_the_chart_does(write_study, tmp_path):
  text = page.write_report(collect(write_study((0, 1))), tmp_path / 'r.html', 'T').read_text()
  chart = text[text.index('<figure role="group" aria-label="Line chart. Finetuning') :]
  chart, key = chart[: chart.index('</figure>')].split('<ul class="key">')
  for name, colour, dash in (
    ('masked self-pretraining', colours.BLUE, '8,2,2,2'),
    ('causal self-pretraining', colours.ORANGE, '4,1'),
  ):
    assert (
      f'stroke-dasharray: {dash}; stroke-dashoffset: 0; stroke: var(--line-{colour}); stroke-width: 1.9'
      in chart
    )
    entry = next(entry for entry in key.split('<li>') if name in entry)
    assert f'stroke="var(--line-{colour})"' in entry
    assert f'stroke-width="1.9" stroke-dasharray="{dash.replace(",", " ")}"' in entry
    assert 'stroke-width="0.8" opacity="0.3"' in entry  # the seeds


def test_models_stand_beside_each_other(write_run, tmp_path):
  for seed in (0, 1):
    for model, plus in (('s4', 0.1), ('transformer', 0)):
      write_run(f'{model}{seed}', model=model, seed=seed, accuracy=0.4 + plus)
      if model == 's4':
        write_run(f'm{seed}', model=model, seed=seed, regime='masked', accuracy=0.6)
  write_run('far', model='s5', data=4)
  write_run('p', model='dlr', protocol='paper')
  runs = collect(tmp_path)
  (comparison,) = compare.comparisons(tables.summarise(runs))
  assert comparison.models == ('s4', 's5', 'transformer')
  assert [name for _, _, name in comparison.arms] == ['scratch', 'masked self-pretraining']
  (gain,) = comparison.gains
  assert (gain.arm.model, gain.against.model, gain.arm.name) == ('transformer', 's4', 'scratch')
  assert gain.interval.estimate == pytest.approx(-0.1)
  assert gain.verdict == 'worse'
  assert {pair[:2] for pair in comparison.apart} == {('s5', 's4'), ('transformer', 's5')}
  text = text_table(runs)
  assert 'transformer over s4' in text
  html = page.write_report(runs, tmp_path / 'r.html', 'T').read_text()
  assert 'Models side by side' in html
  assert 's5 and s4 (scratch) were tested on different examples' in html


def test_models_scored_otherwise_are_not_subtracted(write_run, tmp_path):
  write_run('a', model='s4')
  write_run('b', model='s5', classes=0)
  assert compare.comparisons(tables.summarise(collect(tmp_path))) == []


@pytest.fixture
def started(tmp_path):
  """A folder with three runs that were started, and a config.json of something else."""
  config = {'task': 'image', 'model': {'name': 's4'}, 'regime': 'masked', 'seed': 3}
  for name, stages, failure in (
    ('early', {}, None),
    ('late', {'pretrain': 900, 'finetune': 40}, None),
    (
      'failed',
      {'pretrain': 1200},
      {'error': 'The loss is <b>nan</b>; lower the rate.', 'date': '2026-11-21'},
    ),
  ):
    folder = tmp_path / 'runs' / name
    folder.mkdir(parents=True)
    (folder / 'config.json').write_text(json.dumps(config))
    if failure:
      (folder / 'failure.json').write_text(json.dumps(failure))
    for stage, step in stages.items():
      (folder / f'{stage}-0a').mkdir()
      (folder / f'{stage}-0a' / 'metrics.jsonl').write_text(f'{{"step": {step}, "split": "train"}}\n{{"st')
  (tmp_path / 'runs' / 'data').mkdir()
  (tmp_path / 'runs' / 'data' / 'config.json').write_text('{"version": 1}')
  return tmp_path / 'runs'


def test_runs_without_a_result_are_listed(started, write_run, capsys):
  assert cli.main(['report', f'--workdir={started}']) == 0  # nothing else is there
  alone, html = capsys.readouterr().out, (started / 'report.html').read_text()
  assert 'No finished run was found' in alone
  write_run('done')
  assert cli.main(['report', f'--workdir={started}']) == 0
  text, page_text = capsys.readouterr().out, (started / 'report.html').read_text()
  for shown in (alone, html, text, page_text):
    for words in (
      'unfinished: no step logged yet',
      'unfinished: finetuning, step 40',
      'failed on 2026-11-21: self-pretraining, step 1,200',
      'image, s4, masked, seed 3',
      str(started / 'failed'),
    ):
      assert words in shown
    assert str(started / 'data') not in shown.replace(str(started / 'report'), '')
  assert 'The loss is <b>nan</b>; lower the rate.' in ' '.join(text.split())
  assert 'The loss is &lt;b&gt;nan&lt;/b&gt;; lower the rate.' in page_text
  assert str(started / 'done') not in text.split('Not finished:')[1]


def made_up(seed=0, colour=False):
  rng = np.random.default_rng(seed)
  original = rng.integers(0, 256, (3, 16, 3) if colour else (3, 16)).astype(np.uint8)
  hidden = rng.random((3, 16)) < 0.5
  changed = np.where(hidden[..., None] if colour else hidden, np.uint8(255) - original, original)
  return restored.RestoredInputs(np.array([4, 7, 9], np.int32), original, hidden, changed, np.int32(1200))


@pytest.mark.parametrize('colour', [False, True])
def test_what_was_restored_is_shown(write_run, tmp_path, colour):
  found = made_up(colour=colour)
  folder = write_run('m', regime='masked')
  restored.write_restored(folder, found)
  again = restored.read_restored(folder)
  np.testing.assert_array_equal(again.restored, found.restored)
  assert again.step == 1200
  difference = np.abs(found.restored.astype(int) - found.original)[found.hidden]
  assert again.error == pytest.approx(difference.mean())
  html = page.write_report(collect(tmp_path), tmp_path / 'r.html', 'T').read_text()
  assert html.count('<img src="data:image/png;base64,') == 9
  assert 'step 1,200' in html
  assert 'Test image 7 with hidden positions' in html


def test_pictures_of_which_nothing_was_hidden(write_run, tmp_path):
  found = dataclasses.replace(made_up(), hidden=np.zeros((3, 16), bool))
  restored.write_restored(write_run('m', regime='masked'), found)
  html = page.write_report(collect(tmp_path), tmp_path / 'r.html', 'T').read_text()
  assert 'step 1,200).</p>' in html
  assert 'of 256 levels' not in html


def test_damaged_pictures_are_named(write_run, tmp_path):
  folder = write_run('m', regime='masked')
  (folder / restored.NAME).write_bytes(b'PK no zip')
  with pytest.raises(DamagedFile, match=r'restored\.npz is not what the demo writes'):
    views.report_view(collect(tmp_path), None, ())
  found = made_up()
  for wrong in (found.original[:, :15], found.original.astype(float)):
    np.savez(folder / restored.NAME, **vars(found) | {'original': wrong})
    with pytest.raises(DamagedFile, match=r'restored\.npz is not what the demo writes'):
      restored.read_restored(folder)


def test_an_empty_folder_has_nothing_to_report(tmp_path, capsys):
  assert cli.main(['report', f'--workdir={tmp_path}']) == 2
  assert 'no finished run' in capsys.readouterr().err
