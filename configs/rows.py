"""Rows: the hyperparameters of one model on one task in one regime, each with its origin.

A row is a dict from dotted config keys to Values. Rows are merged with |, where the right side wins;
`common.from_row` adds what all rows share. The rows of Transformers and of the control are here, those of
state-space models in `ssm`, all others in `authors`.
"""

import re
from typing import NamedTuple

from lra_spt.config import mixers
from lra_spt.errors import IMPORT_FIRST, ConfigError, nearest

TRANSFORMERS = ('transformer', 'transformer_rotary')
STATE_SPACE_MODELS = ('s4', 's4_random', 'dlr', 'dlr_random', 's4d', 's5', 'lru')
MODELS = (*TRANSFORMERS, *STATE_SPACE_MODELS)
CONTROLS = ('bag_of_tokens',)
PARTS = ('attention', 'none')  # mixers of the Transformers and of the control, no models by themselves
ARMS = ('masked', 'scratch', 'causal', 'causal scratch')


class Value(NamedTuple):
  """A value of the config and its origin: 'paper', 'code' (published by the paper's authors or, in `authors`
  and for S4 from scratch, by the model's authors) or 'ours'."""

  value: object
  origin: str


def paper(values) -> dict:
  """The values of {key: value}, or of a row, as Values with the origin 'paper'."""
  return _marked(values, 'paper')


def code(values) -> dict:
  """The values of {key: value}, or of a row, as Values with the origin 'code'."""
  return _marked(values, 'code')


def ours(values) -> dict:
  """The values of {key: value}, or of a row, as Values with the origin 'ours'."""
  return _marked(values, 'ours')


def _marked(values, origin):
  return {key: Value(item.value if isinstance(item, Value) else item, origin) for key, item in values.items()}


def both(values) -> dict:
  """Turns {KEY: (first, second)}, the order of the paper's tables, into {'finetune.KEY': first,
  'pretrain.KEY': second}."""
  return {
    f'{stage}.{key}': pair[i]
    for i, stage in enumerate(('finetune', 'pretrain'))
    for key, pair in values.items()
  }


def transformer(
  width,
  depth,
  heads,
  feed_forward,
  pool,
  finetune_lr,
  pretrain_lr,
  finetune_batch,
  pretrain_batch,
  weight_decay,
) -> dict:
  """A line of Table 4."""
  return paper(
    {
      'model.width': width,
      'model.depth': depth,
      'model.feed_forward': feed_forward,
      'model.mixer.heads': heads,
      'finetune.pool': pool,
      **both(
        {
          'batch_size': (finetune_batch, pretrain_batch),
          'optimizer.lr': (finetune_lr, pretrain_lr),
          'optimizer.weight_decay': (weight_decay, weight_decay),
        }
      ),
    }
  )


def neighbours(block) -> dict:
  """Attention to the query's block of `block` positions and to one block on each side (section 2 and C.3). A
  causal model does not see the block after it."""
  return {'model.mixer.block': block, 'model.mixer.back': 1, 'model.mixer.forward': 1}


def transformers(table, *, head, epochs, warmup_steps, more=None) -> dict:
  """{(model, arm): row} of both Transformers from {(model, regime): line of Table 4}, which has three lines.

  The paper gives no hyperparameters for Transformers trained from scratch: they use the finetuning values of
  the masked row (their causal form: of the causal row). The causal rotary Transformer, which the paper ran on
  Speech Commands only, elsewhere uses the masked rotary row with the pooling of the causal row.

  Args:
    table: lines by (model, regime).
    head, epochs, warmup_steps: values of the published code's config for this task; pairs are (finetuning,
      pretraining).
    more: a row of values that only this task has, such as its attention.
  """
  pool = {'finetune.pool': table['transformer', 'causal']['finetune.pool']}
  table = {('transformer_rotary', 'causal'): ours(table['transformer_rotary', 'masked'] | pool)} | table
  rows = {}
  for model in TRANSFORMERS:
    rotary = model == 'transformer_rotary'
    shared = (
      paper(
        {
          'model.norm': 'layer',  # or 'batch' (C.1)
          'model.prenorm': True,  # norms before the layers of a block, not after the sums (C.1)
          'model.position': 'none' if rotary else 'sinusoidal',  # added to the embedding; or 'learned'
          'model.mixer.rotary': rotary,
        }
      )
      | code(
        {
          # 'linear', 'mlp' (width to width, ReLU, width to classes), or for pairs 'match' (see models.heads)
          'finetune.head': head,
          **both(
            {
              'epochs': tuple(map(float, epochs)),  # may be a fraction
              'schedule.warmup_steps': warmup_steps,
            }
          ),
        }
      )
      | ours({'model.mixer.name': 'attention'})
      | (more or {})
    )
    for regime, scratch in (('masked', 'scratch'), ('causal', 'causal scratch')):
      line = table[model, regime]
      rows[model, regime] = shared | line
      tuning = {key: value for key, value in line.items() if not key.startswith('model.')}
      rows[model, scratch] = shared | line | ours(tuning)
  return rows


def bag_of_tokens(transformer_row) -> dict:
  """The row of the control `bag_of_tokens`: sizes and training of the task's Transformer, but no positions,
  no mixer, and mean pooling."""
  row = without_attention(transformer_row)
  return ours(row | {'model.mixer.name': 'none', 'model.position': 'none', 'finetune.pool': 'mean'})


def other_models() -> dict[str, dict]:
  """{name: row} of every mixer that the tables do not have; each is a model of that name.

  Raises:
    ConfigError: a mixer from outside the package has the name of a model of the tables.
  """
  known = (*MODELS, *CONTROLS)
  for name in mixers.registered_outside():
    if name in known:
      raise ConfigError(f'A mixer was registered as {name!r}, which is a model of the tables: rename it.')
  return {name: row for name, row in mixers.rows().items() if name not in (*known, *PARTS)}


def of_mixer(name, transformer_row) -> dict:
  """The row of a model that the tables do not have: sizes, positions and training of the task's Transformer,
  the mixer `name` in place of attention, and then the values of the mixer's row."""
  return ours(without_attention(transformer_row) | other_models()[name] | {'model.mixer.name': name})


def hybrids(arg: str) -> tuple[str, ...]:
  """(NAME,) if the argument of a config file chooses a hybrid, model=NAME with several mixers joined by '-';
  else ().

  Raises:
    ConfigError: a part of the name is no mixer, or the parts are joined by '+'.
  """
  given = re.search(r'(?:^|,)\s*model\s*=\s*([^,]*[-+][^,]*)', arg)
  if given is None:
    return ()
  name = given[1].strip()
  if '+' in name:
    raise ConfigError(
      f'The config argument model={name} joins mixers by +, which separates the models of a study: write '
      f'model={name.replace("+", "-")} for a hybrid.'
    )
  known = mixers.rows()
  if unknown := [part for part in name.split('-') if part not in known]:
    raise ConfigError(
      f'The config argument model={name} has {unknown[0]!r}, which is no mixer: choose from '
      f'{", ".join(known)}.{nearest(unknown[0], known)}{IMPORT_FIRST}'
    )
  return (name,)


def hybrid(name, row_of) -> dict:
  """The row of a hybrid: that of the task's Transformer, with the options that each mixer has as a model. The
  depth is rounded up to whole periods of mixers.

  row_of: function from the name of a model to its row on the task.
  """
  row, parts = without_attention(row_of('transformer')), name.split('-')
  depth = row['model.depth'].value
  row['model.depth'] = Value(depth + -depth % len(parts), 'ours')
  for place, part in enumerate(parts):
    theirs = {} if part == 'none' else row_of({'attention': 'transformer'}.get(part, part))
    options = {key: value for key, value in theirs.items() if key.startswith('model.mixer.')}
    options |= {'model.mixer.name': part}
    row |= {key.replace('.mixer.', f'.mixers.{place}.'): value for key, value in options.items()}
  return ours(row)


def without_attention(row) -> dict:
  """The row without the options of its mixer."""
  return {key: value for key, value in row.items() if not key.startswith('model.mixer.')}
