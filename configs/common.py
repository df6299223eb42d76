"""Shared parts of the config files: their argument, and building the config from a row.

`lra_spt.config.schema` says what each key means. Everything but `runtime` determines the identity of a run.

Controls, on every task:

  model=bag_of_tokens (config argument)   sees how often each token or value occurs, but not their order
  --config.model.shuffle=true             any model, reading all positions in one scrambled order: no nearness

Any other registered mixer, from `lra_spt/models/mixers/` or from outside the package, is model=NAME on every
task too. Its row is what its authors published for the task (`authors`), else the task's Transformer with
this mixer in attention's place (`rows.of_mixer`), with values chosen by us.

A hybrid is model=NAME-NAME, such as model=s4-s4-attention: the task's Transformer whose blocks have these
mixers in turn, as many blocks as the Transformer has or, if the mixers do not divide that, the next multiple.
Each has the options that it has as model=NAME on the task, and nothing else of that row.
"""

from configs import authors
from configs.rows import (
  ARMS,
  CONTROLS,
  MODELS,
  bag_of_tokens,
  code,
  hybrid,
  hybrids,
  of_mixer,
  other_models,
  ours,
  paper,
)
from lra_spt.config import fields, protocol, schema
from lra_spt.config import loading as config_lib
from lra_spt.config import runtime as runtime_lib
from lra_spt.config.regimes import REGIMES, get_regime
from lra_spt.errors import ConfigError

ONE_DAY = 24 * 60 * 60.0
# Keys of a stage whose defaults no source gives. In pretraining on images, the published code evaluates twice
# an epoch.
OURS = ('max_steps', 'evaluate_every', 'data_fraction', 'schedule.total_steps', 'schedule.milestones')
# Everything is transferred, and nothing is frozen.
PARTS = ours({key: schema.DEFAULTS[key] for key in schema.LATER})
RECURRENCES = ('s5', 'lru', 'linoss', 'rglru', 'mingru', 'min_lstm', 'hgrn2')


def choose(arg: str, **options):
  """Parses 'model=s4,regime=masked' into model, regime, causal, protocol, seed and `options`."""
  choice = config_lib.arguments(
    arg,
    model=(*MODELS, *CONTROLS, *other_models(), *hybrids(arg)),
    regime=tuple(REGIMES),
    causal=False,
    protocol=tuple(protocol.PROTOCOLS),
    seed=0,
    **options,
  )
  settle_form(choice)
  return choice


def settle_form(choice) -> None:
  """Sets `causal` of a choice to that of its regime; ConfigError for pretraining without a causal form."""
  regime = get_regime(choice.regime)
  if choice.causal and regime.objective and not regime.causal:
    raise ConfigError(
      f'{regime.name.capitalize()} pretraining has no causal form: write regime=causal, or '
      'regime=scratch,causal=true.'
    )
  choice.causal = choice.causal or regime.causal


def remat_at_length(choice) -> str:
  """runtime.remat of long sequences: saves the outputs of mixers or, for recurrences, whose states are many
  times larger, nothing (benchmarks/compiled.py: S5 moves less memory this way, and saves a quarter)."""
  return 'blocks' if {*choice.model.split('-')} & {*RECURRENCES} else 'mixers'


def from_row(rows, choice, *, task, mask_rate, remat=''):
  """The config of one choice.

  Args:
    rows: {(model, arm): row}, see `rows`.
    choice: from `choose`.
    task: name of the task.
    mask_rate: fraction of positions hidden in masked pretraining (paper, section 2).
    remat: see `runtime`.
  """
  causal_scratch = choice.causal and choice.regime == 'scratch'
  # A user's regime has the hyperparameters of the published regime with the same form.
  published = choice.regime if choice.regime in ARMS else 'causal' if choice.causal else 'masked'
  arm = 'causal scratch' if causal_scratch else published
  shared = paper(
    {
      'model.random_init': '',
      'model.random_std': 0.1,
      'pretrain.mask_rate': mask_rate,
      # C.1: at most 200 epochs or 24 hours on one GPU, whichever comes first.
      'pretrain.max_seconds': ONE_DAY,
      'finetune.max_seconds': ONE_DAY,
    }
  ) | code(
    {
      'model.dropout': 0.0,
      'model.tied_dropout': False,
    }
  )
  for stage in ('pretrain', 'finetune'):  # in regime scratch, pretrain exists but is not used
    shared |= {f'{stage}.{key}': value for key, value in stage_defaults().items()}
  shared |= ours({f'pretrain.{key}': value for key, value in get_regime(choice.regime).options.items()})
  shared |= PARTS | ours(
    {
      'task': task,
      'protocol': choice.protocol,
      'regime': choice.regime,
      'causal': choice.causal,
      'seed': choice.seed,
      'model.name': choice.model,
      'model.shuffle': False,
      'model.weights': '',
      'runtime': runtime() | {'remat': remat},
    }
  )
  sources = {'paper': {}, 'code': {}, 'ours': {}}
  for key, value in (shared | _row(choice.model, arm, task, rows)).items():
    sources[value.origin][key] = value.value
  return config_lib.from_sources(**sources)


def _row(model, arm, task, rows):
  if '-' in model:
    return hybrid(model, lambda name: _row(name, arm, task, rows))
  if (model, arm) in rows:
    return rows[model, arm]
  if model in CONTROLS:
    return bag_of_tokens(rows['transformer', arm])
  return authors.row(model, arm, task, rows) or of_mixer(model, rows['transformer', arm])


def stage_defaults():
  """The defaults of both stages: those of the published code, and ours where no source gives a value.

  `max_seconds` comes from the paper, and the warmup from each row. A row may replace the others too.
  """
  values = fields.defaults(schema.StageSpec)
  del values['max_seconds'], values['schedule.warmup_steps']
  without_source = {key: values.pop(key) for key in OURS}
  return code(values) | ours(without_source)


def runtime():
  """Values that set where and how to compute. They are no part of a run's identity."""
  return fields.defaults(runtime_lib.RuntimeSpec)
