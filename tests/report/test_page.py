"""The page shows picture, table and sentences first and folds the rest. It is safe and self-contained."""

import dataclasses
import re

import numpy as np
import pytest

from lra_spt.errors import DamagedFile
from lra_spt.report.pages import charts, colours, report, styles
from lra_spt.report.runs import restored
from lra_spt.report.runs.inside import Inside, read_inside
from lra_spt.report.runs.kernels import Kernels
from lra_spt.report.study.any_folder import read_any
from lra_spt.report.study.text import conclusions, text
from tests.html_page import Page

HOSTILE = '<script>alert(1)</script>"\' $x^{2}$ & {{ 7 * 7 }}'


def page_of(folder, **settings):
  return Page(report.write(read_any(folder), **settings).read_text(encoding='utf-8'))


@pytest.mark.parametrize('seeds', [(0,), (0, 1, 2)])
def test_the_page_holds_every_section_and_number(write_study, seeds):
  folder = write_study(seeds)
  page, table = page_of(folder, title='Toy study', story='First.\n\nSecond paragraph.'), read_any(folder)
  contents = (
    'Toy study; Second paragraph.; The numbers; Gains of self-pretraining; p after Holm; '
    "Learning curves; Cost: parameters, operations and time; The paper's numbers; How it was run; "
    '131,466; finetune.optimizer.lr; command line; 0123456789ab; jax 0.10.2; data d0; 59.75'
  )
  for words in contents.split('; '):
    assert words in page.words
  for cell in table.cells.values():
    assert cell.score.limits(cell.arm.score) in page.words
  for pair in table.findings.pairs:
    assert pair.score.signed_limits(pair.interval) in page.words
  assert all(sentence in page.words for sentence in conclusions(table))
  assert all(sentence in ' '.join(text(table).split()) for sentence in conclusions(table))
  assert 1 <= len(conclusions(table)) <= 5
  assert page.tags.index('svg') < page.tags.index('table') < page.tags.index('details')
  assert page.tags.count('h1') == 1
  assert all(('th', 'scope', value) in page.attributes for value in ('col', 'row'))


def test_the_page_needs_nothing_from_outside(write_study):
  page = page_of(write_study((0,), task='image'))
  assert not {'link', 'img', 'iframe', 'object'} & {*page.tags}
  assert page.tags.count('script') == 1  # the policy of the page allows it by its hash
  assert not [a for a in page.attributes if a[1] in ('src', 'href', 'action') and not a[2].startswith('#')]
  ids = [value for _, name, value in page.attributes if name == 'id']
  assert len(ids) == len(set(ids))


def test_everything_is_escaped(write_run, tmp_path):
  for seed in (0, 1):
    write_run(
      f'a{seed}',
      task=HOSTILE,
      model=HOSTILE,
      arm=HOSTILE,
      seed=seed,
      protocol=HOSTILE,
      config={HOSTILE: HOSTILE},
    )
    write_run(
      f'b{seed}', task=HOSTILE, model=HOSTILE, regime='masked', seed=seed, protocol=HOSTILE, accuracy=0.8
    )
  page = page_of(tmp_path, title=HOSTILE, story=HOSTILE)
  assert page.tags.count('script') == 1
  assert page.words.count(HOSTILE) >= 10
  assert any(name == 'aria-label' and HOSTILE in value for _, name, value in page.attributes)


def test_a_significant_gain_is_a_coloured_arrow(write_run, tmp_path):
  for seed in range(4):
    write_run(f's{seed}', seed=seed, accuracy=0.2)
    write_run(f'm{seed}', seed=seed, accuracy=0.7, regime='masked')
    write_run(f'n{seed}', seed=seed, accuracy=0.2, regime='masked', model='s4')
    write_run(f't{seed}', seed=seed, accuracy=0.2, model='s4')
  content = report.write(read_any(tmp_path)).read_text()
  picture = content[content.index('class="picture"') : content.index('The numbers')]
  assert picture.count('fill="none" stroke="var(--good)"') == 1
  assert picture.count('fill="none" stroke="var(--faint)"') == 1
  assert 'always the most frequent class' in picture


def test_kernels_are_shown_for_the_runs_that_have_them(write_run, tmp_path):
  curves = np.exp(-np.arange(64) / np.array([[2.0], [20.0]]))
  kernels = Kernels('pretrain', 1200, 'structured', 8, 64, (1, 2), curves[::-1], curves)
  folder = write_run('a', model=HOSTILE, regime='masked')
  write_run('b', model=HOSTILE)
  (folder / 'kernels.json').write_text(kernels.to_json())
  page = page_of(tmp_path)
  assert f'{HOSTILE}, masked self-pretraining, seed 0' in page.words
  assert 'Layer 1: 90 % within 5 lags, at the start 90 % within 40 lags' in page.words


def test_insides_are_shown_and_come_back_from_their_file(write_run, tmp_path):
  states = {'initial': 0, 'pretrained': 1200, 'finetuned': 90, 'scratch': 80}
  field = np.array([0.5, 0.25, 0.125, 0.125])
  weights = np.full((6, 2, 4), 0.25)
  weights[..., 3] = np.nan  # no pair is so far apart
  inside = Inside(
    8,
    states,
    dict.fromkeys(states, field),
    dict.fromkeys(states, weights),
    np.full(4, 0.25),
    {state: np.full((6, 2), 1.5 + step) for state, step in states.items()},
    1.25,
    dict.fromkeys(states, np.ones((6, 4))),
    f'Left out: {HOSTILE}',
  )
  folder = write_run('a', model=HOSTILE, regime='masked')
  write_run('b', model=HOSTILE)
  (folder / 'inside.json').write_text(inside.to_json())
  again = read_inside(folder / 'inside.json')
  for name, value in vars(inside).items():
    jax_free = value if isinstance(value, dict) else {'': value}
    stored = getattr(again, name) if isinstance(value, dict) else {'': getattr(again, name)}
    assert jax_free.keys() == stored.keys()
    for key in stored:
      np.testing.assert_array_equal(stored[key], jax_free[key])
  assert inside.reach('scratch') == 3
  page = page_of(tmp_path)
  assert f'{HOSTILE}, masked self-pretraining, seed 0' in page.words
  assert f'Left out: {HOSTILE}' in page.words
  for words in ('Receptive field', 'Attention, layer 1', 'Kernel, layer 5', 'Layer 6, head 2', 'step 1,200'):
    assert words in page.words
  assert page.words.index('Attention, layer 5') < page.words.index('Numbers, and every head')
  assert page.words.index('Numbers, and every head') < page.words.index('Attention, layer 6')
  assert all(name in page.words for name in ('at the start', 'trained from scratch', 'uniform attention'))


def test_kernels_that_proved_themselves_are_named(write_run, tmp_path):
  stages = {'finetune': {'steps': 1, 'kernels': {'attention: <q>': 'cudnn'}}}
  write_run('b', facts={'stages': stages})
  assert 'cudnn runs attention: <q>' in page_of(tmp_path).words


def test_pretraining_of_another_run_lies_there(write_run, tmp_path):
  other = write_run('other', regime='masked')
  mine = write_run('mine', regime='masked', seed=1, facts={'pretrained': {'run': str(other), 'seed': 0}})
  (mine / 'pretrain-0a1b2c3e' / 'metrics.jsonl').unlink()
  steps, _ = read_any(tmp_path).runs[1].curves['pretrain']['validation']['accuracy']
  assert steps[-1] == 800
  assert f'{other}' in page_of(tmp_path).words


def test_styles_belong_to_arms():
  looks = [
    styles.of_regime('scratch'),
    styles.of_regime('scratch', True),
    styles.of_regime('scratch', False, 'scratch, compute-tied'),
    styles.of_regime('masked'),
    styles.of_regime('causal'),
  ]
  assert len(set(looks)) == len(looks)
  assert styles.of_regime('masked').colour == colours.BLUE
  assert styles.of_regime('unshuffle') in styles.OTHERS


def test_axes_have_round_ticks():
  axis = charts.axis([0.3, 0.98], 0, 100, bounds=(0.0, 1.0))
  assert axis.high == 1.0
  assert axis.ticks() == pytest.approx([0.4, 0.6, 0.8, 1.0])
  log = charts.axis([1e9, 3e12], 0, 100, log=True)
  assert log(1e9) < log(1e10) < log(3e12)
  assert log.ticks() == [1e9, 1e10, 1e11, 1e12]
  assert charts.axis([2.1e13, 2.6e13], 0, 100, log=True).ticks() == pytest.approx(
    [2e13, 2.2e13, 2.4e13, 2.6e13, 2.8e13]
  )
  assert charts.line_chart([], 'x', 'y') is None
  single = charts.line_chart([charts.Line('a', styles.TIED, (([5], [0.5]),))], 'x', 'y')
  assert 'stroke-linecap="round"' in single


def made_up(colour=False):
  rng = np.random.default_rng(0)
  original = rng.integers(0, 256, (3, 16, 3) if colour else (3, 16)).astype(np.uint8)
  hidden = rng.random((3, 16)) < 0.5
  changed = np.where(hidden[..., None] if colour else hidden, np.uint8(255) - original, original)
  return restored.RestoredInputs(np.array([4, 7, 9], np.int32), original, hidden, changed, np.int32(1200))


@pytest.mark.parametrize('colour', [False, True])
def test_restored_inputs_are_shown(write_run, tmp_path, colour):
  inputs = made_up(colour)
  folder = write_run('m', regime='masked')
  restored.write_restored(folder, inputs)
  again = restored.read_restored(folder)
  np.testing.assert_array_equal(again.restored, inputs.restored)
  difference = np.abs(inputs.restored.astype(int) - inputs.original)[inputs.hidden]
  assert again.error == pytest.approx(difference.mean())
  page = page_of(tmp_path)
  assert page.tags.count('img') == 9
  assert 'step 1,200' in page.words
  assert ('img', 'alt', 'Test image 7') in page.attributes


def test_pictures_of_which_nothing_was_hidden(write_run, tmp_path):
  inputs = dataclasses.replace(made_up(), hidden=np.zeros((3, 16), bool))
  restored.write_restored(write_run('m', regime='masked'), inputs)
  assert 'off by' not in page_of(tmp_path).words


def test_damaged_pictures_are_named(write_run, tmp_path):
  folder = write_run('m', regime='masked')
  (folder / restored.NAME).write_bytes(b'PK no zip')
  with pytest.raises(DamagedFile, match=r'restored\.npz is not what the demo writes'):
    read_any(tmp_path)
  inputs = made_up()
  for wrong in (inputs.original[:, :15], inputs.original.astype(float)):
    np.savez(folder / restored.NAME, **vars(inputs) | {'original': wrong})
    with pytest.raises(DamagedFile, match=r'restored\.npz is not what the demo writes'):
      restored.read_restored(folder)


def test_the_table_as_text_names_what_is_published(write_run, tmp_path):
  write_run('a', task='image')
  assert re.search(r'Transformer, scratch +\S+ % \(42\.44 %\)', text(read_any(tmp_path)))


def test_points_of_many_rows_have_labels_that_do_not_overlap():
  points = [(1e12, 0.6 + 0.001 * i, styles.TIED, str(i + 1)) for i in range(5)]
  points += [(4e12, 0.9, styles.TIED, '6')]
  drawn = charts.scatter(points, 'x', 'y')
  actual = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" dy=".35em" text-anchor="middle">(\d)</text>', drawn)
  assert [name for *_, name in actual] == ['1', '2', '3', '4', '5', '6']
  assert len({(x, y) for x, y, _ in actual}) == 6
