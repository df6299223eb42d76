"""Numbers of `lra-spt inspect`, compared with independent ones, and its page."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from data_prep import builders
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import tasks
from lra_spt.objectives import normalise
from lra_spt.report.datasets import inspect, tables
from lra_spt.report.datasets import page as pictures
from lra_spt.report.datasets import text as text_lib
from tests.html_page import Page

HOSTILE = '<script>alert("1")</script>'
VOCABULARY = ('<mask>', '<pad>', '<unk>', '<eos>', 'good', 'bad', HOSTILE, '\x96', 'never')


@pytest.fixture
def write(tmp_path):
  """write(task, {file: [(inputs, label), ...]}, **more of Source) -> data_dir"""

  def write_set(task, files, **more):
    source = {
      'description': 'written by a test',
      'citation': 'none',
      'files': {file: (lambda file=file: iter(files[file])) for file in files},
      'counts': {file: len(examples) for file, examples in files.items()},
      'classes': task.classes,
      'shape': None if isinstance(task.inputs, tasks.Tokens) else task.row,
      'origin': 'a test',
      'verified': False,
      'dtype': np.dtype(task.inputs.dtype).type,
      'documents': task.documents,
    }
    builders.prepare_set(task.dataset, tmp_path, {}, lambda work: builders.Source(**source | more))
    return tmp_path

  return write_set


def tokens_of(name, documents=1, **more):
  inputs = tasks.Tokens(8, vocabulary=9, documents=documents)
  return tasks.Task(name, name, inputs, tasks.Classes(2), **more)


TWO, PLAIN = tasks.Classes(2), tasks.Published()


def values_of(name, length, *, labels=TWO, splits='files', published=PLAIN, **more):
  inputs = tasks.Values(length, **{'mean': (0.5,), 'std': (0.25,)} | more)
  return tasks.Task(name, name, inputs, labels, splits, published=published)


def ids(*tokens, end=True):
  return np.array([VOCABULARY.index(token) for token in tokens] + [3] * end, np.uint8)


@pytest.fixture
def texts(write):
  """(task, data_dir): texts with copies within and between splits, one with another label."""
  task = tokens_of('texts')
  files = {
    'train': [
      (ids('good', 'good', '<unk>'), 1),
      (ids('bad', HOSTILE), 0),
      (ids('good', 'good', '<unk>'), 1),
      (ids('bad', 'bad', 'bad', 'bad', 'bad', 'good', '\x96'), 0),
    ],
    'validation': [(ids('bad', HOSTILE), 1), (ids('good', end=False), 1)],
    'test': [(ids('bad', HOSTILE), 0), (ids('good', 'good', '<unk>'), 1), (ids('bad'), 0)],
  }
  return task, write(task, files, extra={'vocabulary': list(VOCABULARY)})


def pictures_of(page):
  """Images of the page, decoded; asserts that the page holds them itself."""
  sources = [value for tag, name, value in page.attributes if (tag, name) == ('img', 'src')]
  start = 'data:image/png;base64,'
  assert all(source.startswith(start) for source in sources)
  return [Image.open(io.BytesIO(base64.b64decode(source.removeprefix(start)))) for source in sources]


def page_of(task, data_dir, **settings):
  path = data_dir / 'page.html'
  pictures.write_page(inspect.inspect_set(task, data_dir, **settings), path)
  assert [p.name for p in data_dir.glob('page*')] == ['page.html']
  return Page(path.read_text(encoding='utf-8'))


def says(findings, *parts):
  """Returns True if one finding contains all the parts."""
  return any(all(part in remark for part in parts) for remark in tables.remarks(findings))


def rows_of(findings, title):
  (table,) = (t for t in tables.tables(findings) if t.title == title)
  return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def test_tokens_are_counted(texts):
  findings = inspect.inspect_set(*texts)
  assert findings.whole
  train = findings.contents['train']
  assert train.lengths.tolist() == [[4], [3], [4], [8]]
  occurrences = {'good': 5, '<unk>': 2, '<eos>': 4, 'bad': 6, HOSTILE: 1, '\x96': 1}
  assert {VOCABULARY[i]: n for i, n in enumerate(train.ids) if n} == occurrences
  assert [c.unended for c in findings.contents.values()] == [0, 1, 0]
  row, *_ = rows_of(findings, 'Tokens')
  assert row['Tokens'] == '19'
  assert row['<unk>'] == '10.5 %'
  assert row['Ids never seen'] == '1'
  row, *_ = rows_of(findings, 'Lengths')
  assert (row['Min'], row['Median'], row['Max'], row['At 8']) == ('3', '4', '8', '25.0 %')
  assert says(findings, '1 of 2 validation', '<eos>')


def test_copies_are_counted_with_their_labels(texts):
  findings = inspect.inspect_set(*texts)
  counted = {(o.first, o.second): (o.same, o.copies, o.agree, o.pairs) for o in findings.overlaps}
  assert counted == {
    ('train', 'train'): (0, 1, 1, ((0, 2, True),)),
    ('train', 'validation'): (0, 1, 0, ((1, 0, False),)),
    ('validation', 'validation'): (0, 0, 0, ()),
    ('train', 'test'): (0, 2, 2, ((1, 0, True), (0, 1, True))),
    ('validation', 'test'): (0, 1, 0, ((0, 0, False),)),
    ('test', 'test'): (0, 0, 0, ()),
  }
  assert says(findings, '2 of 3 test', 'train example', 'all with its label')
  assert says(findings, '1 of 2 validation', 'another label')


def test_one_file_for_two_splits_is_not_called_a_copy(write):
  task = tokens_of('reviews', splits='files', published=tasks.Published(splits='reused'))
  examples = [(ids('good', *['bad'] * k), k % 2) for k in range(6)]
  files = {'train': examples[:3], 'validation': examples[3:4], 'test': examples[4:]}
  data_dir = write(task, files, extra={'vocabulary': list(VOCABULARY)})
  clean = inspect.inspect_set(task, data_dir)
  assert all(o.same == o.copies == 0 for o in clean.overlaps)
  paper = inspect.inspect_set(task, data_dir, protocol='paper')
  counts = {(o.first, o.second): (o.same, o.copies) for o in paper.overlaps}
  assert counts.pop(('validation', 'test')) == (2, 0)
  assert set(counts.values()) == {(0, 0)}
  assert says(paper, '2 of 2 test examples', 'validation')


def test_hostile_text_is_shown_and_does_nothing(texts):
  page = page_of(*texts)
  assert HOSTILE in page.words
  assert 'U+0096' in page.words
  assert not {'script', 'link', 'iframe'} & {*page.tags}
  assert not any(name.startswith('on') for _, name, _ in page.attributes)
  assert pictures_of(page) == []
  assert page.tags.count('svg') == 2  # labels and lengths


def test_values_are_measured(write):
  constants = {'mean': (0.4, 0.5, 0.6), 'std': (0.2, 0.3, 0.1)}
  task = values_of('colours', 16, splits='holdout', **constants)
  rng = np.random.default_rng(1)
  images = rng.integers(0, 256, (25, 16, 3)).astype(np.uint8)
  images[7] = 9
  files = {'train': [(x, k % 2) for k, x in enumerate(images[:20])], 'test': [(x, 0) for x in images[20:]]}
  data_dir = write(task, files)
  findings = inspect.inspect_set(task, data_dir, examples=3)
  constant = 0
  for name, contents in findings.contents.items():
    stored = examples_lib.open_split(task, name, data_dir).gather(np.arange(contents.total))['inputs']
    wanted = np.asarray(normalise(task, stored), np.float64)
    mean, std = contents.values.normalised(task)
    np.testing.assert_allclose(mean, wanted.mean((0, 1)), atol=1e-5)
    np.testing.assert_allclose(std, wanted.std((0, 1)), atol=1e-5)
    np.testing.assert_array_equal(contents.values.least, stored.min((0, 1)))
    np.testing.assert_array_equal(contents.values.most, stored.max((0, 1)))
    constant += contents.values.constant
  assert constant == 1
  assert says(findings, 'Inputs that hold one value only')
  assert says(findings, 'No test example', 'label 1')
  page = page_of(task, data_dir, examples=3)
  small = [picture for picture in pictures_of(page) if picture.size == (4, 4)]
  assert len(small) == 6  # three of each class
  shown = {np.asarray(picture).tobytes() for picture in small}
  assert shown <= {image.tobytes() for image in images[:20]}
  named = re.findall(
    r'(\d), example (\d+)', ' '.join(value for _, name, value in page.attributes if name == 'alt')
  )
  assert len(named) == 6
  assert all(int(index) % 2 == int(label) for label, index in named)


def test_measured_values_are_shown_as_training_reads_them(write):
  task = values_of('loud', 8, dtype='float32', scale=1.0, mean=(0.0,), std=(1.0,), measured=True)
  rng = np.random.default_rng(4)
  files = {
    name: [(rng.normal(50, 20, 8).astype(np.float32), k % 2) for k in range(40)]
    for name in ('train', 'validation', 'test')
  }
  findings = inspect.inspect_set(task, write(task, files, statistics=True))
  assert findings.task.inputs.mean == pytest.approx((50.0,), abs=3)
  assert not says(findings, 'Normalised with the constants of the task')


def test_a_channel_that_never_varies_is_named(write):
  task = values_of('flat', 8, dtype='float32', mean=(0.0,) * 2, std=(1.0,) * 2, measured=True)
  rng = np.random.default_rng(4)
  files = {
    name: [(np.full((8, 2), 0.1, np.float32), k % 2) for k in range(40)] for name in examples_lib.SPLITS
  }
  for examples in files.values():
    for x, _ in examples:
      x[:, 0] = rng.normal(50, 20, 8)
  data_dir = write(task, files, statistics=True)
  findings = inspect.inspect_set(task, data_dir)
  assert says(findings, 'Channel 1 never varies', 'train')
  assert not says(findings, 'Normalised with the constants of the task')
  assert not says(findings, 'varies differently')
  row = rows_of(findings, 'Values')[1]
  assert [row[column] for column in ('Channel', 'Std', 'Mean norm.', 'Std norm.')] == [
    '1',
    '0',
    '0.000',
    '0.000',
  ]
  assert 'nan' not in page_of(task, data_dir).words
  stored = examples_lib.open_split(task, 'test', data_dir).gather(np.arange(40))['inputs']
  assert not np.asarray(normalise(findings.task, stored))[..., 1].any()


@pytest.mark.parametrize(
  'count, text', [(1, '1 bytes'), (999_499, '999 kB'), (999_999, '1 MB'), (1_234_000_000_000, '1.23 TB')]
)
def test_sizes(count, text):
  assert tables.size(count) == text
  assert tables.number(9999.7) == '10,000'


def test_splits_on_other_scales_are_pointed_out(write):
  task = values_of('scales', 8, dtype='int16', scale=1.0, mean=(0.0,), std=(10.0,))
  rng = np.random.default_rng(4)
  draw = lambda scale: [(np.int16(scale * rng.standard_normal(8)), k % 2) for k in range(40)]  # noqa: E731
  files = {'train': draw(10), 'validation': draw(11), 'test': draw(40)}
  findings = inspect.inspect_set(task, write(task, files))
  assert says(findings, 'Channel 0 varies differently', 'test')
  assert not says(findings, 'varies differently in validation')


def test_sound_becomes_curves(write):
  task = values_of(
    'clips', 50, dtype='int16', scale=32_768.0, mean=(0.0,), std=(0.1,), labels=tasks.Classes(3)
  )
  rng = np.random.default_rng(2)
  clips = (3000 * rng.standard_normal((9, 50))).astype(np.int16)
  clips[0, 0] = -32_768
  examples = [(clip, k % 3) for k, clip in enumerate(clips)]
  files = {'train': examples[:6], 'validation': examples[6:], 'test': examples[3:6]}
  data_dir = write(task, files, class_names=['<b>yes', 'no', 'up'])
  findings = inspect.inspect_set(task, data_dir, examples=3)
  assert findings.shown['label'].tolist() == [0, 1, 2]
  np.testing.assert_allclose(findings.contents['train'].values.mean, clips[:6].mean())
  np.testing.assert_allclose(findings.contents['train'].values.std, clips[:6].astype(float).std())
  assert findings.contents['train'].values.least == -32_768
  page = page_of(task, data_dir, examples=3)
  assert '0 <b>yes' in page.words
  assert page.tags.count('svg') == 3 + 2


def test_recordings_and_real_labels(write):
  task = values_of(
    'pulse', 12, dtype='float32', scale=1.0, mean=(0.5, 0.5), std=(0.3, 0.3),
    labels=tasks.Real(0.0, 1.0, (60.0, 90.0)), splits='grouped', published=tasks.Published(splits='shuffled'),
  )  # fmt: skip
  rng = np.random.default_rng(3)
  groups = [int(n) for n in rng.integers(2, 6, 20)]
  labels = rng.uniform(50, 100, sum(groups)).astype(np.float32)
  windows = [(rng.random((12, 2), np.float32), float(label)) for label in labels]
  data_dir = write(task, {'train': windows}, groups={'train': groups})
  findings = inspect.inspect_set(task, data_dir)
  assert [len(groups) for groups in findings.groups.values()] == [14, 3, 3]
  assert len(set.union(*findings.groups.values())) == 20
  owner = np.repeat(np.arange(20), groups)
  for name, contents in findings.contents.items():
    assert {number for _, number in findings.groups[name]} == set(owner[contents.index].tolist())
  train = labels[findings.contents['train'].index].astype(float)
  test = labels[findings.contents['test'].index].astype(float)
  row = rows_of(findings, 'Labels')[2]
  assert float(row['Mean']) == pytest.approx(test.mean(), rel=1e-3)
  assert float(row['Error']) == pytest.approx(abs(test - train.mean()).mean(), rel=1e-3)
  expected = 1 - ((test - train.mean()) ** 2).sum() / ((test - test.mean()) ** 2).sum()
  assert float(row['R2']) == pytest.approx(expected, abs=1e-3)
  outside = sum(not 60 <= label <= 90 for label in train)
  assert says(findings, f'{outside} of {len(train)} train labels are outside 60 to 90')
  paper = inspect.inspect_set(task, data_dir, protocol='paper')
  shared = len(paper.groups['train'] & paper.groups['test'])
  assert shared > 3
  assert says(paper, 'Train and test have examples of', f' {shared} common group')
  assert page_of(task, data_dir, examples=5).tags.count('svg') == 5 + 1 + 2


def test_pairs_share_documents(write):
  task = tokens_of('papers', documents=2)
  a, b, c, d = (ids('good', *['bad'] * k) for k in range(4))
  files = {
    'train': [((a, b), 1), ((b, c), 0)],
    'validation': [((b, a), 1), ((d, d), 0)],
    'test': [((d, c), 1)],
  }
  data_dir = write(task, files, extra={'vocabulary': list(VOCABULARY)})
  findings = inspect.inspect_set(task, data_dir)
  actual = {(x.first, x.second): (x.distinct, x.shared, x.pairs) for x in findings.documents}
  assert actual == {
    ('train', 'validation'): (3, 2, 1),
    ('train', 'test'): (2, 1, 1),
    ('validation', 'test'): (2, 1, 1),
  }
  copies = {(o.first, o.second): o.copies for o in findings.overlaps if o.copies}
  assert copies == {('train', 'validation'): 1}  # the same two, the other way round
  assert findings.contents['train'].lengths.tolist() == [[2, 3], [3, 4]]
  page = page_of(task, data_dir, examples=2)
  assert page.tags.count('blockquote') == 4


def test_a_sample_says_so(texts):
  task, data_dir = texts
  findings = inspect.inspect_set(task, data_dir, sample=3)
  assert [len(c) for c in findings.contents.values()] == [3, 2, 3]
  assert not findings.whole
  again = inspect.inspect_set(task, data_dir, sample=3)
  assert again.contents['train'].index.tolist() == findings.contents['train'].index.tolist()
  assert says(findings, '--sample 0')
  assert '3 of 4 train' in text_lib.text(findings)


def test_large_sets_are_sampled_unless_asked(texts, monkeypatch):
  monkeypatch.setattr(inspect, 'WHOLE_BYTES', 10)
  monkeypatch.setattr(inspect, 'SAMPLE', 1)
  assert [len(c) for c in inspect.inspect_set(*texts).contents.values()] == [1, 1, 1]
  assert inspect.inspect_set(*texts, sample=0).whole


def test_a_split_without_examples_is_left_out(write):
  task = values_of('squares', 16)
  files = {'train': [], 'test': [(np.arange(16, dtype=np.uint8) + k, k % 2) for k in range(4)]}
  data_dir = write(task, files)
  findings = inspect.inspect_set(task, data_dir)
  assert list(findings.contents) == ['test']
  assert says(findings, 'train split', 'no examples')
  assert 'From test' in page_of(task, data_dir).words


def test_command_line(tmp_path, capsys):
  assert cli.main(['prepare', 'stripes', '--data_dir', str(tmp_path), '--examples', '80']) == 0
  capsys.readouterr()
  page = tmp_path / 'stripes.html'
  assert cli.main(['inspect', 'stripes', '--data_dir', str(tmp_path), '--out', str(page)]) == 0
  captured = capsys.readouterr()
  assert captured.err == ''  # no progress bar where nobody watches
  assert re.search(r'all +80 +500 +2,000', captured.out)
  assert str(page) in captured.out
  assert len([p for p in pictures_of(Page(page.read_text(encoding='utf-8'))) if p.size == (8, 8)]) == 32


def test_data_sets_find_their_task(shipped_tasks):
  assert inspect.find_task('cifar10', 'data').name == 'scifar'
  assert inspect.find_task('image', 'data').inputs.grayscale
  assert inspect.find_task('pathfinder128', 'data').name == 'pathx'
  assert all(inspect.find_task(task.dataset, 'data').dataset == task.dataset for task in shipped_tasks)


@pytest.mark.parametrize('values', [[-3e38, 3e38], [3e38, 3e38], [97.3, 97.3], [1e-40, 1e-40], [0.0]])
def test_histograms_have_a_scale_whatever_they_hold(values):
  assert '<svg' in pictures._histograms({'test': np.array(values, np.float32)}, 'x', 'values')['svg']
