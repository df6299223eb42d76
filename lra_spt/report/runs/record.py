"""Run folders from predictions that were made elsewhere; they join the same reports. Does not need jax."""

import dataclasses
import datetime
import pathlib

import numpy as np

from lra_spt import files
from lra_spt.config.protocol import get_protocol
from lra_spt.config.regimes import get_regime
from lra_spt.data import examples as examples_lib
from lra_spt.data.tasks import get_task
from lra_spt.errors import ConfigError, DataError, MissingFile, one_line
from lra_spt.report.runs import metrics as test_metrics
from lra_spt.report.runs import run_folder

ARRAYS = ('index', 'label', 'prediction')
CHUNK = 1024  # examples read at a time, of which only the labels are kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatedFacts:
  """Facts about predictions that nothing can check.

  model, arm, source: one line each. arm: the name of the run in reports, '' for the name of its regime and
  form. source: the origin of the predictions. parameters: number of the model's parameters. seconds: the time
  of all training.
  """

  model: str
  regime: str
  causal: bool = False
  protocol: str = 'clean'
  seed: int = 0
  arm: str = ''
  source: str = ''
  parameters: int | None = None
  seconds: float | None = None

  def __post_init__(self):
    for flag, text in (('--model', self.model), ('--name', self.arm), ('--source', self.source)):
      if not text.isprintable() or len(text) > 200:
        raise ConfigError(f'{flag} is {text[:60]!r}: give one line of at most 200 characters.')
    counts = (('--seed', self.seed), ('--parameters', self.parameters), ('--seconds', self.seconds))
    for flag, number in counts:
      if number is not None and not 0 <= number < 2**53:
        raise ConfigError(f'{flag} is {number}: give a number from 0 to below 2**53.')


def record(predictions, out, facts: StatedFacts, task: str, data_dir) -> dict:
  """Writes the folder of a run from its predictions of the test split.

  Args:
    predictions: .npz file with the arrays index, label and prediction, [N] each. `index` is as in batches.
      Labels and predictions are classes or, in a regression, numbers in units of the label. If the main score
      of two classes is an AUROC, predictions are probabilities of class 1. Labels of positions and their
      predictions are [N, L], with the label -1 for positions that do not count. Several labels are 0 or 1,
      [N, K], with predictions from 0 to 1. In several dimensions both are [N, K].
    out: folder of the run, new.
    facts: about the run.
    task: its name; data_dir: folder of its prepared set.

  Returns:
    The content of result.json.

  Raises:
    DataError: the file does not hold each index of the test split once, its labels are not those of the set,
      or a prediction is impossible.
    ConfigError: `out` holds a run, or a name is unknown.
    MissingFile: there is no such file, or no prepared set.
  """
  out, predictions = run_folder.local_folder(out, '--out'), pathlib.Path(predictions)
  regime, protocol, task = get_regime(facts.regime), get_protocol(facts.protocol), get_task(task, data_dir)
  if protocol.published_splits:
    task = task.as_published()
  refuse_used(out, predictions)
  test = examples_lib.open_split(task, 'test', data_dir)
  arrays = checked(predictions, test)
  metrics, undefined, arrays = test_metrics.complete(task, {}, {}, arrays, test)
  stages = run_folder.STAGES if regime.objective else run_folder.STAGES[1:]
  optional = {'arm': facts.arm, 'parameters': facts.parameters}
  result = {
    'model': facts.model,
    'regime': facts.regime,
    'causal': regime.causal or facts.causal,
    'protocol': facts.protocol,
    'seed': facts.seed,
    'metric': task.score,
    'metrics': test_metrics.of_splits({}, {'metrics': metrics, 'undefined': undefined}),
    'stages': {name: {} for name in stages},
    'date': datetime.date.today().isoformat(),
    'recorded': {'source': facts.source} | ({} if facts.seconds is None else {'seconds': facts.seconds}),
  }
  result |= test_metrics.of_data(task, facts.model, test)
  result |= {key: value for key, value in optional.items() if value}
  with files.owned(out, 'writing'):
    refuse_used(out, predictions)
    run_folder.write_result(out, result, arrays)
  return result


def refuse_used(out: pathlib.Path, predictions: pathlib.Path) -> None:
  """Raises a ConfigError where the folder holds a run, or predictions other than those to be recorded."""
  for name in (run_folder.RESULT, run_folder.CONFIG, run_folder.PREDICTIONS):
    path = out / name
    if path.exists() and not (predictions.exists() and path.samefile(predictions)):
      raise ConfigError(f'--out is {out}, which already holds a run ({name}): name another folder.')


def checked(path: pathlib.Path, test: examples_lib.Examples) -> dict[str, np.ndarray]:
  """{'index': int32, 'label': as in the set, 'prediction': int32 or float32}, [N] each, in the order of the
  test split; raises as `record`."""
  arrays = _read(path)
  wanted, task = test.indices, test.task
  index_N = _whole(path, 'index', arrays['index'])
  order = np.argsort(index_N, kind='stable')
  twice = index_N[order][1:][np.diff(index_N[order]) == 0]
  if twice.size:
    raise DataError(f'{path} names the test example with index {twice[0]} twice; give each once.')
  missing, foreign = np.setdiff1d(wanted, index_N), np.setdiff1d(index_N, wanted)
  if missing.size or foreign.size:
    faults = []
    if missing.size:
      faults.append(f'lacks {missing.size:,} of the {wanted.size:,} test examples (such as {missing[0]})')
    if foreign.size:
      faults.append(f'names {foreign.size:,} that are not in the test split (such as {foreign[0]})')
    raise DataError(
      f'{path} {" and ".join(faults)}; `index` has to be that of the batches of the test split of '
      f'{task.name}, all of them.'
    )
  # The place in the file of every example of the split, in the order of the split.
  places = order[np.searchsorted(index_N[order], wanted)]
  label_N, given_N = labels(test), arrays['label'][places]
  if given_N.shape != label_N.shape:
    raise DataError(
      f'{path} has labels of the shape {list(given_N.shape)}, but those of the test split have '
      f'{list(label_N.shape)}; take index and label from the same batch.'
    )
  given_N = given_N.astype(np.float32) if task.regression else given_N
  if (wrong := _where_any(given_N != label_N)).size:
    first = wrong[0]
    raise DataError(
      f'{path} has another label than the prepared set for {wrong.size:,} of {wanted.size:,} test examples '
      f'(index {wanted[first]}: {given_N[first]}, in the set {label_N[first]}); take index and label from '
      'the same batch.'
    )
  prediction_N = arrays['prediction'][places]
  if real := task.regression or task.probabilities:
    with np.errstate(over='ignore'):
      prediction_N = prediction_N.astype(np.float32)
    good, kind = np.isfinite(prediction_N), 'a finite number'
    if task.probabilities:
      good, kind = (prediction_N >= 0) & (prediction_N <= 1), 'probabilities from 0 to 1'
  else:
    prediction_N = _whole(path, 'prediction', prediction_N)
    good, kind = (prediction_N >= 0) & (prediction_N < task.classes), f'a class from 0 to {task.classes - 1}'
    good |= label_N < 0  # a position that does not count
  if (wrong := _where_any(~good)).size:
    raise DataError(
      f'{path} predicts {arrays["prediction"][places][wrong[0]]} for the example with index '
      f'{wanted[wrong[0]]}, but {task.name} asks for {kind}; correct the predictions.'
    )
  answers_N = prediction_N if real else prediction_N.astype(np.int32)
  return {'index': wanted, 'label': label_N, 'prediction': answers_N}


def _read(path) -> dict[str, np.ndarray]:
  """The arrays of a file, real numbers of one length."""
  if not path.exists():
    raise MissingFile(f'--predictions is {path}, which does not exist; give a .npz file.')
  if path.is_dir():
    raise DataError(f'--predictions is {path}, which is a folder; give a .npz file.')
  try:
    loaded = np.load(path, allow_pickle=False)
    if not (single := isinstance(loaded, np.ndarray)):
      with loaded as stored:
        names = list(stored)
        arrays = {name: np.asarray(stored[name]) for name in ARRAYS if name in names}
  except Exception as error:  # zipfile, zlib and numpy each raise their own kinds
    reason = one_line(error)
    if 'pickle' in reason:  # NumPy advises to allow pickles
      reason = 'it holds other things than arrays of numbers'
    raise DataError(
      f'{path} cannot be read as an .npz file ({reason}); write it with numpy.savez.'
    ) from error
  if single:
    raise DataError(
      f'{path} is a single array; write index, label and prediction with numpy.savez(FILE, index=..., '
      'label=..., prediction=...).'
    )
  if missing := [name for name in ARRAYS if name not in arrays]:
    raise DataError(f'{path} has no array {missing[0]}; save {", ".join(ARRAYS)} with numpy.savez.')
  index, label, prediction = (arrays[name] for name in ARRAYS)
  if (
    index.ndim != 1
    or label.ndim not in (1, 2)
    or not index.shape == label.shape[:1] == prediction.shape[:1]
    or label.shape != prediction.shape
    or any(a.dtype.kind not in ('iufb' if name == 'label' else 'iuf') for name, a in arrays.items())
  ):
    held = ', '.join(f'{name} {array.dtype} {list(array.shape)}' for name, array in arrays.items())
    raise DataError(f'{path} holds {held}; save three lists of numbers of the same length.')
  return arrays


def _where_any(faults) -> np.ndarray:
  """The examples that have a fault, of bool [N] or [N, L]."""
  return np.flatnonzero(faults.reshape(len(faults), -1).any(1))


def _whole(path, name, array_N) -> np.ndarray:
  """int64 [N]."""
  if array_N.dtype.kind == 'f':
    raise DataError(f'{path} holds {name} as {array_N.dtype}; save whole numbers, such as int32.')
  return array_N.astype(np.int64)


def labels(examples: examples_lib.Examples) -> np.ndarray:
  """Returns the labels of a split in its order, int32, bool or float32 [N, ...]; keeps no inputs."""
  examples.forget()
  starts = range(0, len(examples), CHUNK)
  parts = [examples.gather(np.arange(a, min(a + CHUNK, len(examples))))['label'] for a in starts]
  return np.concatenate(parts)
