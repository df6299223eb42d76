"""What the JSON files of a run hold, and error messages for files of another form."""

import pathlib

# What result.json holds: {key: (type, whether it must be there)}.
RESULT_SCHEMA = {
  'task': (str, True),
  'model': (str, True),
  'regime': (str, True),
  'causal': (bool, True),  # the form of the mixer
  'protocol': (str, True),
  'seed': (int, True),
  'arm': (str, False),  # how reports call the run, where regime and form do not say enough
  'metric': (str, False),  # that scores the test set: a key of metrics.test
  'metrics': (dict, True),  # {'validation': {name: value}, 'test': {name: value, 'examples': count}}
  'parameters': (int, False),
  'stages': (dict, True),  # {stage: steps, examples, epochs, seconds, flops_per_step, best_step, ...}
  'splits': (str, False),  # kind of the splits, see `lra_spt.data.splits`
  'groups': (dict, False),  # {'name': 'patients', 'members': 'windows'} where test examples belong together
  'cautions': (list, False),  # sentences to stand beside the numbers
  'published': (dict, False),  # {'task', 'model'}: key of the published numbers
  'pretrained': (dict, False),  # the run whose pretraining was finetuned
  'recorded': (dict, False),  # {'source', 'seconds'} of predictions made elsewhere; not trained here
  'hardware': (dict, False),
  'versions': (dict, False),
  'commit': (str, False),
  'date': (str, False),
  'config': (dict, False),
  'runtime': (dict, False),
  'origins': (dict, False),
  'fingerprints': (dict, False),  # of data and splits
  'code': (dict, False),  # digests of mixer, objective and task, where they are not of the package
  'data': (dict, False),  # source, and whether it was verified
}

# What stage.json and the stages of result.json hold; a result may lack what an older version did not note.
STAGE_SCHEMA = {
  'steps': int,
  'examples': int,
  'epochs': float,
  'seconds': float,
  'flops_per_step': float,
  'best_step': int,
  'metrics': dict,
  'folder': str,
}
# diverged: see `lra_spt.objectives.contract`; time: {part: seconds} of the process that ended the stage;
# kernels: {call: the implementation that proved itself and ran}, see `training.autotune`; members: of the
# population that it trained in, whose time its seconds are a share of; best_digest: of the checkpoint of the
# best validation, see `training.checkpoints.digests`; computed: by which commit, on what, in which precision.
STAGE_OPTIONAL = {'diverged': bool, 'time': dict, 'kernels': dict, 'members': int}
STAGE_OPTIONAL |= {'best_digest': str, 'computed': dict}
# What every config.json holds, beside further sections of the config.
CONFIG_SCHEMA = {
  'task': str,
  'model': dict,
  'protocol': str,
  'regime': str,
  'causal': bool,
  'seed': int,
  'finetune': dict,
  'fingerprints': dict,
}


def config_problem(config: dict) -> str | None:
  """What is wrong with the form of a config.json, or None."""
  if problem := _problem(config, CONFIG_SCHEMA):
    return problem
  for section, key in (('model', 'name'), ('fingerprints', 'data'), ('fingerprints', 'splits')):
    if not isinstance(config[section].get(key), str):
      return f'{section} has {config[section].get(key)!r:.80} as {key}'
  optional = {'pretrained': str, 'pretrain': dict, 'code': dict}
  return _problem(config, {key: kind for key, kind in optional.items() if key in config})


def stage_problem(stage: dict, *, whole: bool) -> str | None:
  """What is wrong with what is noted of a stage, or None; whole: nothing may be missing."""
  schema = {key: kind for key, kind in STAGE_SCHEMA.items() if whole or key in stage}
  schema |= {key: kind for key, kind in STAGE_OPTIONAL.items() if key in stage}
  numbers = {**stage.get('metrics', {}), **stage.get('time', {})} if not _problem(stage, schema) else {}
  if problem := _problem(stage, schema) or _metrics_problem(numbers):
    return problem
  folder = stage.get('folder', 'a')
  plain = folder == pathlib.PurePath(folder).name and folder not in ('', '..')
  return None if plain else f'folder is {folder!r:.80}'


def result_problem(result: dict) -> str | None:
  """What is wrong with the form of a result, or None."""
  for key, (kind, needed) in RESULT_SCHEMA.items():
    value = result.get(key)
    if value is None and not needed:
      continue
    if not _is(kind, value):
      return f'{key} is {value!r:.120}'
  for name, stage in result['stages'].items():
    if not isinstance(stage, dict):
      return 'a stage is not a mapping'
    if problem := stage_problem(stage, whole=False):
      return f'of stage {name}, {problem}'
  if not isinstance(result['metrics'].get('test'), dict):
    return 'it has no test metrics'
  if not all(isinstance(metrics, dict) for metrics in result['metrics'].values()):
    return 'metrics hold something other than mappings'
  for key in ('groups', 'published', 'pretrained', 'recorded', 'fingerprints', 'code'):
    for name, value in (result.get(key) or {}).items():
      if not _is({'seed': int, 'seconds': float}.get(name, str), value):
        return f'{name} of {key} is {value!r:.80}'
  if not all(isinstance(sentence, str) for sentence in result.get('cautions') or ()):
    return 'cautions hold something other than text'
  return next(filter(None, map(_metrics_problem, result['metrics'].values())), None)


def failure_problem(note: dict) -> str | None:
  """What is wrong with the form of a failure.json, or None."""
  return next((f'{key} is {value!r:.80}' for key, value in note.items() if not isinstance(value, str)), None)


def is_metrics_line(record) -> bool:
  """Whether a value of JSON is a line of a metrics.jsonl: {'step': int, 'split': str, name: value}."""
  return isinstance(record, dict) and _is(int, record.get('step')) and _is(str, record.get('split'))


def is_number(value) -> bool:
  """Whether a value of JSON is a finite number."""
  return _is(float, value)


def _metrics_problem(metrics: dict) -> str | None:
  return next((f'{key} is {value!r:.80}' for key, value in metrics.items() if not _is(float, value)), None)


def _problem(content: dict, schema: dict) -> str | None:
  for key, kind in schema.items():
    if key not in content:
      return f'it lacks the key {key}'
    if not _is(kind, content[key]):
      return f'{key} is {content[key]!r:.80}'
  return None


def _is(kind: type, value) -> bool:
  """Whether a value of JSON is of a kind; float: any number, of a size that sums and products bear."""
  if kind not in (int, float):
    return isinstance(value, kind)
  whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
  return whole or (kind is float and isinstance(value, float) and abs(value) < 1e100)
