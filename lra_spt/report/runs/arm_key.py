"""Keys of runs, made from fields of their configs: which runs answer one question, and in which way."""

import dataclasses
from collections.abc import Mapping

from lra_spt.config import loading

REGIMES = ('scratch', 'masked', 'causal')  # those of the paper, in its order; others follow
BAG, SHUFFLED = 'bag_of_tokens', ' (positions shuffled)'  # controls: a model, and an end of a model's name
GIVEN = ' (given weights)'  # end of the name of a model that starts from `model.weights`
MODEL_NAMES = {
  'transformer': 'Transformer',
  'transformer_rotary': 'Transformer + Rotary',
  'local': 'Local attention',
  'bigbird': 'BigBird',
  'mega': 'MEGA',
  'spade': 'SPADE',
  'pythia_70m': 'Pythia 70M',
  's4_random': 'S4 random',
  'dlr_random': 'DLR random',
  **{name: name.upper() for name in ('s4', 's4d', 's5', 'dlr', 'lru')},
}


@dataclasses.dataclass(frozen=True)
class Question:
  """Runs of one question are comparable.

  model: its name; a model that reads positions in scrambled order, or starts from weights in a file, has
  another name. settings: the values of the section `model`, and class weights, as text. data_fraction: the
  share of the training examples that have labels.
  """

  task: str
  model: str
  protocol: str
  metric: str
  settings: str = ''
  data_fraction: float = 1.0


@dataclasses.dataclass(frozen=True)
class ArmKey:
  """One way to train a model: the same for all seeds.

  budget: the unit, steps or epochs, and the limit of all stages together, 0 if it is not known. parts: texts
  with the patterns of parameters that are transferred or frozen; () where everything is transferred and
  nothing frozen.
  """

  question: Question
  regime: str
  causal: bool
  budget: tuple[str, float] = ('steps', 0)
  parts: tuple[str, ...] = ()

  @property
  def name(self) -> str:
    """The name of the arm in reports, such as 'masked self-pretraining' or 'scratch, frozen: embed/*'."""
    return ', '.join((self._whole_name, *self.parts))

  @property
  def _whole_name(self) -> str:
    if self.regime == 'scratch':
      return 'scratch, causal form' if self.causal else 'scratch'
    if self.causal == (self.regime == 'causal'):
      return f'{self.regime} self-pretraining'
    return f'{self.regime} self-pretraining, {"causal" if self.causal else "bidirectional"} form'

  @property
  def order(self):
    """Sorts arms: scratch, its causal form, masked, causal, other pretraining."""
    rank = REGIMES.index(self.regime) if self.regime in REGIMES else len(REGIMES)
    return rank, self.regime, self.causal, self.parts

  def is_tied_to(self, other) -> bool:
    """True if this arm is compute-tied: it trains from scratch for the steps, or epochs, that both stages of
    `other` have together."""
    alike = self.budget[1] > 0 and self.budget == other.budget and not self.parts
    return self.regime == 'scratch' != other.regime and alike


def key_of(result: Mapping, left_out=()) -> ArmKey:
  """Returns the key of a run from its result.json or, if it is not finished, from its config.json.

  Args:
    result: the content of that file. Runs whose configs are not known count as equal in their settings.
    left_out: dotted keys of settings in which comparable runs may differ, because validation chose them.
  """
  config = result.get('config') or (result if isinstance(result.get('model'), Mapping) else {})
  sections = {name: _section(config, name) for name in ('model', 'pretrain', 'finetune')}
  model, finetune = sections['model'], sections['finetune']
  name = result['model'] if isinstance(result.get('model'), str) else model.get('name', '')
  settings = loading.flattened(model, 'model.')
  if 'class_weights' in finetune:
    settings['finetune.class_weights'] = finetune['class_weights']
  settings = {key: value for key, value in sorted(settings.items()) if key not in left_out}
  question = Question(
    result['task'],
    name + GIVEN * bool(model.get('weights')) + SHUFFLED * bool(model.get('shuffle')),
    result['protocol'],
    result.get('metric') or 'accuracy',
    repr(settings),
    finetune.get('data_fraction', 1.0),
  )
  stages = [finetune] if result['regime'] == 'scratch' else [sections['pretrain'], finetune]
  unit = 'steps' if all(stage.get('max_steps') for stage in stages) else 'epochs'
  limit = sum(stage.get('max_steps' if unit == 'steps' else 'epochs') or 0 for stage in stages)
  parts = tuple(
    f'{word}: {" ".join(finetune[name])}'
    for name, word in (('transfer', 'transferred'), ('freeze', 'frozen'))
    if name in finetune
  )
  return ArmKey(question, result['regime'], result['causal'], (unit, limit), parts)


def _section(config, name):
  section = config.get(name)
  return section if isinstance(section, Mapping) else {}


def model_name(model: str) -> str:
  """A model as tables call it."""
  base = model.removesuffix(SHUFFLED).removesuffix(GIVEN)
  return MODEL_NAMES.get(base, base) + model[len(base) :]


@dataclasses.dataclass(frozen=True)
class PlannedArm:
  """One cell of a study's plan, run or not, from the argument of its config file and its overrides.

  config: path of the config file, '' for a cell that never runs. settings: overrides that make other models.
  """

  config: str
  model: str
  regime: str
  causal: bool
  settings: str


def planned_arm(cell: Mapping, left_out=()) -> PlannedArm:
  """Returns the plan of a cell of study.json; left_out: as for `key_of`."""
  config, _, argument = cell['config'].partition(':')
  given = dict(item.strip().partition('=')[::2] for item in argument.split(','))
  regime = given.get('regime', 'masked') if config else ''  # which config files choose by default
  settings = {
    key: value
    for key, value in sorted(cell['overrides'].items())
    if (key.startswith('model.') and key not in left_out) or key == 'finetune.data_fraction'
  }
  causal = regime == 'causal' or given.get('causal') == 'true'
  return PlannedArm(config, given.get('model', ''), regime, causal, repr(settings))


def chosen_by_search(cell: Mapping) -> set[str]:
  """Returns the keys that a search tried for the cell, and dropout: comparable cells may differ in these."""
  tried = [tried['values'] for part in cell['search'] for tried in part['tried']]
  return {'model.dropout', *(pair.partition('=')[0] for values in tried for pair in values.split(', '))}
