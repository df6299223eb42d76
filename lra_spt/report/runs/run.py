"""Finished runs read from their folders: result.json at once, predictions and curves when asked for."""

import dataclasses
import functools
import pathlib

import numpy as np

from lra_spt import files
from lra_spt.config import loading
from lra_spt.config.values import is_number
from lra_spt.data import measures
from lra_spt.errors import DamagedFile, MissingFile, one_line
from lra_spt.files import checksums
from lra_spt.report.runs import inside, kernels, restored, run_folder
from lra_spt.report.runs.arm_key import SHUFFLED, key_of
from lra_spt.report.statistics import jackknife
from lra_spt.report.statistics.scores import SCORES

STAGES = run_folder.STAGES
RECORDED = '\u2020'  # beside numbers that come from predictions made elsewhere
# Dtypes of labels and predictions in predictions.npz: of classes, two with a probability, several labels, and
# numbers.
_KINDS = {
  'i': {'label': 'iu', 'prediction': 'iu'},
  'p': {'label': 'iu', 'prediction': 'f'},
  'b': {'label': 'b', 'prediction': 'f'},
  'f': {'label': 'f', 'prediction': 'f'},
}
STAGE_NAMES = {'pretrain': 'self-pretraining', 'finetune': 'finetuning'}


@dataclasses.dataclass(frozen=True, eq=False)
class FinishedRun:
  """One finished run: its folder and the content of its result.json."""

  path: pathlib.Path
  result: dict

  task = property(lambda self: self.result['task'])
  protocol = property(lambda self: self.result['protocol'])
  regime = property(lambda self: self.result['regime'])
  causal = property(lambda self: self.result['causal'])
  seed = property(lambda self: self.result['seed'])
  score = property(lambda self: SCORES[self.result.get('metric') or 'accuracy'])
  test = property(lambda self: self.result['metrics']['test'])
  value = property(lambda self: None if self.why_unscored else self.test[self.score.key])
  # What an accuracy counts: examples, or their positions.
  examples = property(lambda self: self.test.get('positions', self.test['examples']))
  pretrained = property(lambda self: 'pretrain' in self.result['stages'])
  cautions = property(lambda self: self.result.get('cautions') or [])
  recorded = property(lambda self: self.result.get('recorded'))  # of predictions made elsewhere
  model = property(lambda self: self.key.question.model)
  # True if `flops` leave out a part of what the mixer computes.
  flops_at_least = property(lambda self: any(s.get('flops_at_least') for s in self.result['stages'].values()))

  @functools.cached_property
  def key(self):
    """Its ArmKey."""
    return key_of(self.result)

  @property
  def arm(self):
    """The name of its way of training in reports."""
    return self.result.get('arm') or self.key.name

  @property
  def published(self):
    """{'task', 'model'}: how the published tables call them; None where they have neither."""
    if self.model.endswith(SHUFFLED) or self.result.get('arm'):
      return None
    return self.result.get('published', {'task': self.task, 'model': self.model})

  @functools.cached_property
  def why_unscored(self) -> str:
    """The reason why it has no test score, '' if it has one. Older results hold a number even if R2 is not
    defined, so their predictions decide."""
    key = self.score.key
    if self.test[key] is None:
      return self.result['metrics']['undefined']['test'][key]
    if key == 'r2' and self.predictions is not None:
      return measures.why_undefined(key, self.predictions[1])
    return ''

  @property
  def still_improving(self) -> bool:
    """True if the best validation of finetuning was the last one, so that more steps may score higher."""
    best = self.stage('finetune', 'best_step')
    return bool(best) and best == self.stage('finetune', 'steps')

  @property
  def why_left_out(self) -> str:
    """The reason why tables, comparisons and exports hold no score of it, '' if they do."""
    if loading.is_short(self.result.get('config') or {}):
      return 'a smoke run of a few steps, whose numbers mean nothing'
    return self.why_unscored

  @functools.cached_property
  def predictions(self):
    """(index, label, prediction), [N] each, sorted by index; None when there is no predictions.npz.

    They are int64. For a regression label and prediction are float64, [N] or [N, K]; for several labels they
    are bool and float64, [N, K]; with an AUROC of two classes prediction is float64. For labels of positions,
    every position that counts has a row, whose index is that of its example times L plus its place.
    """
    return None if self._stored is None else self._stored[:3]

  @functools.cached_property
  def _stored(self):
    """(index, label, prediction, group), the last None where no test examples belong together."""
    path, names = self.path / run_folder.PREDICTIONS, ('index', 'label', 'prediction', 'group')
    if not path.exists():
      return None
    try:
      with path.open('rb') as file, np.load(file, allow_pickle=False) as stored:
        arrays = {name: np.asarray(stored[name]) for name in names if name != 'group' or name in stored}
    except Exception as error:  # zipfile, zlib and numpy each raise their own kinds
      raise DamagedFile(
        f'{path} is damaged and cannot be read ({one_line(error)}); {run_folder.REPEAT}, or delete the file '
        'to do without paired comparisons.'
      ) from error
    several = 'b' if arrays['label'].dtype == bool else 'p' if self.score.key == 'auroc' else 'i'
    kind = {'accuracy': 'i', 'r2': 'f'}.get(self.score.key, several)
    kinds = {'index': 'iu', 'group': 'iu'} | _KINDS[kind]
    if (
      len({a.shape[:1] for a in arrays.values()}) > 1
      or any(a.ndim != 1 for name, a in arrays.items() if name in ('index', 'group'))
      or arrays['label'].ndim not in {'b': (2,), 'p': (1,)}.get(kind, (1, 2))
      or arrays['label'].shape != arrays['prediction'].shape
      or not arrays['index'].size
      or any(a.dtype.kind not in kinds[name] or not np.isfinite(a).all() for name, a in arrays.items())
    ):
      held = ', '.join(f'{name} {a.dtype} {list(a.shape)}' for name, a in arrays.items())
      raise DamagedFile(
        f'{path} should hold index, label and prediction as three lists of one length, of '
        f'{"finite numbers" if "f" in kinds["prediction"] else "integers"}, but holds {held}; '
        f'{run_folder.REPEAT}.'
      )
    if np.any(np.diff(np.sort(arrays['index'])) == 0):
      raise DamagedFile(f'{path} names test examples twice; {run_folder.REPEAT}.')
    arrays = measures.by_position(arrays)
    order = np.argsort(arrays['index'])
    wide = {'f': np.float64, 'b': bool}
    sorted_arrays = {name: a[order].astype(wide.get(a.dtype.kind, np.int64)) for name, a in arrays.items()}
    return tuple(sorted_arrays.get(name) for name in names)

  @functools.cached_property
  def units(self):
    """`jackknife.score_units` of `predictions`; None without them, or without a score."""
    if self.predictions is None or self.why_unscored:
      return None
    return jackknife.score_units(self.score.key, *self.predictions[1:], self.group_N)

  @property
  def why_no_units(self) -> str:
    """The reason why its score has no error to compare: it has fewer than two `units`; '' if it has more."""
    if self.units is not None and len(self.units) > 1:
      return ''
    if self.predictions is None:
      return f'{run_folder.PREDICTIONS} is missing'
    count = self.examples if self.group_N is None else len(np.unique(self.group_N))
    if count < 2:
      return f'a comparison needs two or more {self.unit_name}, and the test set has one'
    if self.score.key == 'r2':
      return f'the labels of the test set do not vary without one of its {self.unit_name}'
    return f'{self.score.name} is not defined without one of the {self.unit_name}'

  @property
  def counted(self):
    """The score worked out from `predictions`, which must be there; NaN where it is not defined."""
    return measures.MEASURES[self.score.key](*self.predictions[1:])

  @property
  def group_N(self):
    """int64 [N], the number of the group of each prediction, such as a patient; None where unknown or without
    meaning."""
    return None if self._stored is None else self._stored[3]

  @property
  def unit_name(self):
    return 'test examples' if self.group_N is None else self.group_name

  @property
  def group_name(self):
    """The name of the groups, in the plural, such as 'patients'."""
    return (self.result.get('groups') or {'name': 'groups of test examples'})['name']

  @property
  def group_members(self):
    """The name of the test examples of a group, such as 'windows'."""
    return (self.result.get('groups') or {}).get('members', 'test examples')

  @functools.cached_property
  def curves(self):
    """{stage: {split: {metric: (steps int [n], values float [n])}}} from metrics.jsonl, empty without one."""
    return {stage: _curves(self.stage_folder(stage)) for stage in STAGES if stage in self.result['stages']}

  @functools.cached_property
  def kernels(self):
    """Kernels from kernels.json, which `lra-spt kernels` writes; None without one."""
    path = self.path / run_folder.KERNELS
    return kernels.read_kernels(path) if path.exists() else None

  @functools.cached_property
  def inside(self):
    """Inside from inside.json, which `lra-spt inside` writes; None without one."""
    path = self.path / run_folder.INSIDE
    return inside.read_inside(path) if path.exists() else None

  def stage_folder(self, stage):
    """The folder with the files of a stage, None if it is not known."""
    named = self.result['stages'][stage].get('folder')
    given = self.result.get('pretrained') if stage == 'pretrain' else None
    run = files.place(given['run']) if given else self.path  # another run's pretraining lies with that run
    if named:
      return run_folder.followed(run / named)
    # Without a name, take the last one written: several may lie side by side after a change of config.
    folders = [f for f in run_folder.stages_in(run, [stage]) if (f / run_folder.METRICS).exists()]
    return max(folders, key=lambda f: ((f / run_folder.METRICS).stat().st_mtime_ns, f.name), default=None)

  def stage(self, name, key):
    """A value of one stage from result.json, e.g. stage('pretrain', 'examples'), or None."""
    return self.result['stages'].get(name, {}).get(key)

  def total(self, key):
    """Sum over both stages of 'steps', 'examples', 'seconds' or 'flops' (per step times steps), or None."""
    if key == 'seconds' and self.recorded:
      return self.recorded.get('seconds')
    stages = [s for s in STAGES if s in self.result['stages']]
    values = [self.flops(s) if key == 'flops' else self.stage(s, key) for s in stages]
    return None if not values or None in values else sum(values)

  def flops(self, name):
    per_step, steps = self.stage(name, 'flops_per_step'), self.stage(name, 'steps')
    return None if per_step is None or steps is None else per_step * steps


def settings(result) -> dict:
  """The values of a run's config that seeds of one arm share, with precision and digests of user code.

  Args:
    result: the content of result.json or config.json.

  Returns:
    {dotted key: value}, without those of pretraining if the regime has none; {} without a config.
  """
  config = result.get('config') if 'metrics' in result else result
  if not isinstance(config, dict):
    return {}
  left_out = {'seed', 'fingerprints', 'code', 'pretrained'}
  left_out |= {'pretrain'} if result['regime'] == 'scratch' else set()
  config = {key: value for key, value in config.items() if key not in left_out}
  config |= {key: result[key] for key in ('code',) if key in result}
  if precision := (result.get('runtime') or {}).get('precision'):
    config |= {'runtime': {'precision': precision}}
  return loading.flattened(config)


def in_what_they_differ(of_each: list[dict]) -> list[str]:
  """Returns the keys that all nonempty `settings` have, but with different values."""
  known = [values for values in of_each if values]
  keys = [key for key in known[0] if all(key in values for values in known)] if known else []
  return [key for key in keys if any(values[key] != known[0][key] for values in known)]


def read_run(folder):
  """The FinishedRun of one folder. Raises DamagedFile when its result.json is no whole result."""
  folder = files.place(folder)
  result = run_folder.read_result(folder)
  if wrong := _unreadable(result):
    raise DamagedFile(
      f'{folder / run_folder.RESULT} is not the result of a run that can be reported ({wrong}); '
      f'{run_folder.REPEAT}, or move its folder away.'
    )
  return FinishedRun(folder, result)


def read_whole(folder):
  """Returns the FinishedRun of a folder, after it has read every file that a report shows.

  Raises:
    DamagedFile: naming the first that is damaged.
    FileAccessError: naming the first that cannot be read.
  """
  run = read_run(folder)
  if (path := run.path / run_folder.CONFIG).exists():
    checksums.read(path, 'the config of a run', run_folder.CONFIG_ADVICE)
  run_folder.read_failure(run.path)
  for stage in run.result['stages']:
    place = run.stage_folder(stage)
    if place is not None:
      run_folder.read_stage(place)
      run_folder.check_metrics(place)
  _ = run.predictions, run.curves, run.kernels, run.inside
  restored.read_restored(run.path)
  return run


def finished(workdir):
  """Returns the folders of finished runs in or below a folder, without those of hyperparameter searches of
  studies there. Raises MissingFile when there is no such folder."""
  workdir = files.place(workdir)
  if not workdir.is_dir():
    raise MissingFile(f'there is no folder {workdir}: give the folder that your runs were written to.')
  return outside_searches(workdir, [path.parent for path in sorted(workdir.rglob(run_folder.RESULT))])


def outside_searches(workdir, folders):
  """Returns the folders that are not those of a hyperparameter search of a study in or below `workdir`."""
  searches = {path.parent / run_folder.SEARCH for path in files.place(workdir).rglob(run_folder.STUDY)}
  return [folder for folder in folders if not searches.intersection(folder.parents)]


def _unreadable(result):
  """The first entry that a report cannot read in a result of the right form; '' without one."""
  metric, test = result.get('metric') or 'accuracy', result['metrics']['test']
  if metric not in SCORES:
    return f'its metric is {metric!r}, and reports know {", ".join(SCORES)} only'
  for key, names in (('groups', {'name'}), ('published', {'task', 'model'}), ('pretrained', {'run'})):
    if not names <= (result.get(key) or dict.fromkeys(names)).keys():
      return f'{key} is {result[key]!r:.80}'
  (low, high), value, examples = SCORES[metric].bounds, test.get(metric), test.get('examples')
  readable = metric in test and (value is None or (is_number(value) and low <= value <= high))
  if not readable or not isinstance(examples, int) or examples < 1:
    return f'test {metric} {value!r} of {examples!r} examples'
  return ''


def _curves(folder):
  path = None if folder is None else folder / run_folder.METRICS
  if path is None or not path.exists():
    return {}
  points, whole = {}, 0
  lines = run_folder.metrics_lines(path)
  for record in filter(None, lines):  # a process killed while it wrote leaves a half line
    step, split = record.pop('step'), record.pop('split')
    whole += 1
    for name, value in record.items():
      if is_number(value):
        # A resumed run writes some steps again; the later line holds.
        points.setdefault(split, {}).setdefault(name, {})[step] = float(value)
  if whole * 2 < len(lines):
    raise DamagedFile(
      f'{path} is damaged: {len(lines) - whole} of its {len(lines)} lines are not metrics; '
      'delete the file to do without learning curves.'
    )
  return {
    split: {name: _by_step(values) for name, values in metrics.items()} for split, metrics in points.items()
  }


def _by_step(values):
  steps = sorted(values)
  return np.array(steps), np.array([values[step] for step in steps])
