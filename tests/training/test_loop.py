"""One stage: when it stops, when it evaluates and saves, what it keeps, and what it refuses."""

import contextlib
import dataclasses
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError, Interrupted
from lra_spt.objectives import Classification
from lra_spt.training import loop
from lra_spt.training.checkpoints.store import Checkpoints
from lra_spt.training.evaluate import Measured
from lra_spt.training.monitoring.hooks import ReportProgress


def lines_of(directory, split=None):
  lines = [json.loads(line) for line in (directory / 'metrics.jsonl').read_text().splitlines()]
  return [line for line in lines if split in (None, line['split'])]


def steps_in(folder):
  return [int(path.name) for path in folder.iterdir()]


def fake_metrics(monkeypatch, stage, values, losses=None):
  """Lets validations yield these accuracies and losses in turn. Returns a dict that collects the evaluated
  parameters by step."""
  evaluated, remaining, losses = {}, iter(values), iter(losses or [1.0] * len(values))

  def evaluate(state, examples, seeds, redraw=None, whole=False):
    assert whole == (examples is not stage.validation)  # curves use all examples
    evaluated[int(state['step'])] = jax.tree.map(np.array, state['params'])
    return [Measured({'accuracy': next(remaining), 'loss': next(losses)})]

  monkeypatch.setattr(stage, 'evaluator', types.SimpleNamespace(of_each=evaluate))
  return evaluated


class StateRecorder:
  """Stands in for the jitted dispatch: counts calls and steps, and leaves the rest of the state as it is."""

  def __init__(self, monkeypatch):
    self.calls = 0
    monkeypatch.setattr(loop, 'train_steps', lambda program: self.dispatch)

  def dispatch(self, state, chunk, count, key):
    self.calls += 1
    names = ('loss', 'gradient_norm', 'learning_rate')
    records = dict.fromkeys(names, jnp.zeros(chunk['weight'].shape[0], np.float32))
    return state | {'step': state['step'] + count}, records


@pytest.fixture
def idle(monkeypatch):
  """Training that only counts steps, for tests of the loop around it."""
  return StateRecorder(monkeypatch)


@pytest.mark.parametrize(
  'limits, steps',
  [
    ({'finetune__max_steps': 5}, 5),
    ({'finetune__epochs': 1.0}, 6),
    ({'finetune__epochs': 0.4}, 3),
    ({'finetune__epochs': 0.0, 'finetune__max_steps': 7}, 7),
    ({'finetune__patience': 2, 'finetune__evaluate_every': 2}, 6),
    ({'finetune__max_seconds': 1e-4}, 1),  # the first dispatch, which is of one step
    ({'finetune__max_seconds': 1e-4, 'finetune__epochs': 0.0}, 1),
  ],
)
def test_each_limit_stops_the_stage(make_stage, idle, monkeypatch, tmp_path, limits, steps):
  """Every stage ends with an evaluation and a checkpoint, and a resumed one knows that it is over."""
  stage = make_stage(tmp_path, **limits)
  fake_metrics(monkeypatch, stage, [0.5] * 9)
  (result,) = stage.run()
  assert result.steps == steps
  assert result.seconds > 0
  assert lines_of(tmp_path, 'validation')[-1]['step'] == steps
  assert max(steps_in(tmp_path / 'checkpoints' / 'latest')) == steps
  calls, seconds = idle.calls, lines_of(tmp_path, 'validation')[-1]['seconds']
  again = make_stage(tmp_path, **limits)
  fake_metrics(monkeypatch, again, [0.5])
  (result,) = again.run()
  assert (idle.calls, result.steps) == (calls, steps)
  assert result.seconds >= seconds - 1e-3  # the time before the restart counts


def test_no_limit_is_an_error(make_stage, tmp_path):
  with pytest.raises(ValueError, match='epochs is 0, and so are max_steps and max_seconds'):
    make_stage(tmp_path, finetune__epochs=0.0, finetune__max_seconds=0.0)


@pytest.mark.parametrize(
  'key, value',
  [
    ('finetune__batch_size', 0),
    ('finetune__patience', -1),
    ('runtime__microbatches', 0),
    ('finetune__evaluate_every', -2),
    ('runtime__steps_per_dispatch', 0),
    ('runtime__log_every', 0),
    ('runtime__checkpoint_every', -1),
  ],
)
def test_impossible_counts_are_refused(make_stage, tmp_path, key, value):
  with pytest.raises(ValueError, match=f'{key.split("__")[1]} is {value}, but it must be at least'):
    make_stage(tmp_path, **{key: value})


def test_best_is_not_the_last(make_stage, monkeypatch, tmp_path):
  """`best` holds the parameters of the best validation, `latest` those of the last; nothing else is kept."""
  stage = make_stage(tmp_path)
  evaluated = fake_metrics(monkeypatch, stage, [0.1, 0.5, 0.3, 0.9])
  (result,) = stage.run()
  assert list(evaluated) == [6, 12, 18]
  assert result.best_step == 12
  assert steps_in(tmp_path / 'checkpoints' / 'best') == [12]
  assert max(steps_in(tmp_path / 'checkpoints' / 'latest')) == 18
  jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.array, result.state['params']), evaluated[12])
  kernels = [params['head']['out']['kernel'] for params in evaluated.values()]
  assert not np.array_equal(kernels[1], kernels[2])


def test_the_loss_chooses_where_no_validation_has_a_score(make_stage, idle, monkeypatch, tmp_path, capsys):
  stage = make_stage(tmp_path, runtime__progress=True)
  fake_metrics(monkeypatch, stage, [None] * 4, [0.6, 0.5, 0.7, 0.5])
  (result,) = stage.run()
  assert (result.best_step, result.metrics) == (12, {'accuracy': None, 'loss': 0.5})
  assert [line['accuracy'] for line in lines_of(tmp_path, 'validation')] == [None] * 3
  assert 'step 18/18: val loss 0.7, loss' in capsys.readouterr().out


class Lowest(Classification):
  selection = ('accuracy', 'min')


@pytest.mark.parametrize(
  'kind, values, best',
  [
    (Classification, [0.5, 0.5, 0.5, 0.0], 6),
    (Classification, [0.0, 0.4, 0.5, 0.0], 18),
    (Lowest, [0.5, 0.2, 0.2, 0.9], 12),
  ],
)
def test_direction_and_ties_of_the_selection(make_stage, idle, monkeypatch, tmp_path, kind, values, best):
  """The first of equal metrics wins. The fourth value is for the final evaluation of the best step."""
  stage = make_stage(tmp_path)
  stage = make_stage(tmp_path, objective=kind(stage.objective.task))
  fake_metrics(monkeypatch, stage, values)
  assert stage.run()[0].best_step == best


@pytest.mark.parametrize('every, expected', [(0, [6, 12, 18]), (4, [4, 6, 8, 12, 16, 18]), (6, [6, 12, 18])])
def test_checkpoint_every(make_stage, idle, monkeypatch, tmp_path, every, expected):
  saved, save = [], Checkpoints.save_latest

  def note_and_save(self, state):
    saved.append(int(state['step']))
    save(self, state)

  monkeypatch.setattr(Checkpoints, 'save_latest', note_and_save)
  stage = make_stage(tmp_path, runtime__checkpoint_every=every)
  fake_metrics(monkeypatch, stage, [0.5] * 4)
  stage.run()
  assert saved == expected


def test_a_deleted_best_is_noticed_before_the_stage_goes_on(make_stage, idle, monkeypatch, tmp_path):
  stage = make_stage(tmp_path, finetune__max_steps=6)
  fake_metrics(monkeypatch, stage, [0.5, 0.5])
  stage.run()
  shutil.rmtree(tmp_path / 'checkpoints' / 'best')
  stage, before = make_stage(tmp_path, finetune__max_steps=12), idle.calls
  fake_metrics(monkeypatch, stage, [0.5, 0.5])
  words = (
    rf'^{tmp_path}/checkpoints/best holds no checkpoint .* restore .* or delete {tmp_path} to train that'
  )
  with pytest.raises(CheckpointError, match=words):
    stage.run()
  assert idle.calls == before


def test_a_reader_that_goes_away_costs_no_evaluation(make_stage, idle, monkeypatch, tmp_path):
  """An evaluation is saved before it is printed, so that `lra-spt train | head -1` loses none."""
  stage = make_stage(tmp_path)
  fake_metrics(monkeypatch, stage, [0.5])

  def note(self, step, scalars):
    if scalars['split'] == 'validation':
      raise BrokenPipeError

  monkeypatch.setattr(ReportProgress, 'note', note)
  with pytest.raises(BrokenPipeError):
    stage.run()
  assert [max(steps_in(tmp_path / 'checkpoints' / name)) for name in ('latest', 'best')] == [6, 6]


@pytest.mark.parametrize('step, evaluated', [(4, []), (6, [6]), (18, [6, 12, 18])])
def test_asked_to_end_when_an_evaluation_is_due(make_stage, monkeypatch, tmp_path, step, evaluated):
  """The evaluation is made, because the resumed stage starts after it. The last step is not interrupted."""
  recorder = StateRecorder(monkeypatch)
  stage = make_stage(tmp_path, runtime__steps_per_dispatch=1)
  fake_metrics(monkeypatch, stage, [0.5] * 4)
  monkeypatch.setattr(loop.processes, 'asked_to_end', lambda: recorder.calls >= step)
  if step == 18:
    assert stage.run()[0].steps == 18
  else:
    with pytest.raises(Interrupted, match=f'asked to end and stopped at step {step}; the same command'):
      stage.run()
  assert max(steps_in(tmp_path / 'checkpoints' / 'latest')) == step
  assert [line['step'] for line in lines_of(tmp_path, 'validation')] == evaluated
  assert lines_of(tmp_path, 'train')[-1]['step'] == step


def test_a_limit_of_time_that_passed_before_any_evaluation(make_stage, monkeypatch, tmp_path):
  """A stage that is resumed after its limit trains one more step and evaluates, since `best` needs one."""
  recorder = StateRecorder(monkeypatch)
  stage = make_stage(tmp_path, runtime__steps_per_dispatch=1, finetune__max_seconds=1000.0)
  fake_metrics(monkeypatch, stage, [])
  monkeypatch.setattr(loop.processes, 'asked_to_end', lambda: recorder.calls == 3)
  with pytest.raises(Interrupted):
    stage.run()
  stage = make_stage(tmp_path, runtime__steps_per_dispatch=1, finetune__max_seconds=1000.0)
  evaluated = fake_metrics(monkeypatch, stage, [0.5, 0.5])
  monkeypatch.setattr(loop.processes, 'asked_to_end', lambda: False)
  monkeypatch.setattr(stage, '_out_of_time', lambda ledger: [True])
  (result,) = stage.run()
  assert (result.steps, list(evaluated)) == (4, [4])


def test_a_limit_of_time_is_of_each_member(make_stage, tmp_path):
  """The first member has used its time: it is evaluated and ends. The other trains as it does alone."""
  limits = {'finetune__max_seconds': 1000.0, 'runtime__steps_per_dispatch': 1}
  alone = make_stage(tmp_path / 'alone', **limits)
  members = [make_stage(tmp_path / name, **limits).members[0] for name in ('first', 'other')]
  used = np.float32(2000)
  members[0].start = lambda fresh: fresh | {'control': fresh['control'] | {'seconds': jax.device_put(used)}}
  data = {'train': alone.train, 'validation': alone.validation}
  with jax.set_mesh(mesh := sharding.make_mesh(devices=jax.devices()[:1], members=2)):
    first, other = loop.StageLoop(members, data, mesh).run()
  assert (first.steps, other.steps) == (1, 18)
  assert first.seconds - 2000 < other.seconds < 1000
  alone.run()
  written = {name: lines_of(tmp_path / name, 'validation') for name in ('first', 'other', 'alone')}
  assert [line['step'] for line in written['first']] == [1]
  for line in (line for lines in written.values() for line in lines):
    del line['seconds']
  assert written['other'] == written['alone']
  used = [float(latest_of(member)['control']['seconds']) for member in members]
  assert used[0] >= 2000 > 1000 > used[1] > 0


def latest_of(member):
  """The state that a member of a stage saved last."""
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with contextlib.closing(Checkpoints(member.directory / 'checkpoints')) as saved:
    return saved.load_latest(member.built.abstract_state(mesh))


def test_the_number_of_evaluated_training_examples_is_exact(make_stage, monkeypatch, tmp_path):
  stage = make_stage(tmp_path)
  count = next(n for n in range(1, 300) if int(n / 200 * 200) != n)

  class Train(list):
    def part(self, fraction):
      return Train(self[: int(fraction * len(self))])

    @property
    def labelled(self):
      return self

  data = {'train': Train(range(200)), 'validation': stage.validation}
  built = dataclasses.replace(
    stage.built, runtime=dataclasses.replace(stage.loop, training_examples=count, placement='host')
  )
  monkeypatch.setattr(loop.device_data, 'choose', lambda *arguments: 'host')
  member = types.SimpleNamespace(built=built)
  assert len(loop.StageLoop([member], data, stage.mesh).some_of_training) == count


def test_steps_per_dispatch_changes_nothing(make_stage, tmp_path):
  """With 1, 3 and 8 steps a dispatch, evaluations are at the same steps and losses are the same."""
  seen = {}
  for steps in (1, 3, 8):
    folder = tmp_path / str(steps)
    (result,) = make_stage(
      folder,
      'pretrain',
      runtime__steps_per_dispatch=steps,
      runtime__log_every=100,
      pretrain__evaluate_every=5,
      pretrain__max_steps=12,
      runtime__checkpoint_every=0,
    ).run()
    lines = lines_of(folder)
    seen[steps] = [(line['split'], line['step']) for line in lines], [line['loss'] for line in lines], result
  assert seen[1][0] == [(split, step) for step in (5, 10, 12) for split in ('train', 'validation')]
  for steps in (3, 8):
    assert seen[steps][0] == seen[1][0]
    np.testing.assert_allclose(seen[steps][1], seen[1][1], rtol=1e-5)
    assert seen[steps][2].best_step == seen[1][2].best_step


def test_save_restore_identical_metrics(make_stage, tmp_path):
  """A finished stage opened again trains nothing, and its best checkpoint gives the same metrics exactly."""
  (first,) = make_stage(tmp_path, finetune__epochs=2.0).run()
  written = (tmp_path / 'metrics.jsonl').read_text()
  stage = make_stage(tmp_path, finetune__epochs=2.0, runtime__evaluation_batch_size=0)
  (again,) = stage.run()
  assert again.metrics == first.metrics
  assert (again.steps, again.best_step) == (first.steps, first.best_step)
  assert (tmp_path / 'metrics.jsonl').read_text() == written
  jax.tree.map(np.testing.assert_array_equal, again.state, first.state)
  (line,) = (line for line in lines_of(tmp_path, 'validation') if line['step'] == first.best_step)
  assert {key: line[key] for key in first.metrics} == first.metrics
  latest = latest_of(stage.members[0])
  assert int(latest['step']) == 12
  assert float(latest['control']['best']) == np.float32(first.metrics['accuracy'])


def test_non_finite_numbers_stop_the_stage(make_stage, tmp_path):
  """After a good first epoch the learning rate jumps by 1e35. The stage ends, and its checkpoint is good."""
  jump = {
    'finetune__schedule__name': 'multistep',
    'finetune__schedule__milestones': (1,),
    'finetune__schedule__factor': 1e35,
    'finetune__schedule__warmup_steps': 0,
  }
  stage = make_stage(tmp_path, **jump)
  sentence = r'finetune met a non-finite number at step \d+ in \w+/.+; lower finetune.optimizer.lr'
  with pytest.raises(loop.NonFiniteError, match=sentence) as error:
    stage.run()
  step = int(str(error.value).split(' at step ')[1].split()[0])
  assert 6 <= step <= 8
  assert max(steps_in(tmp_path / 'checkpoints' / 'latest')) == 6
  latest = latest_of(stage.members[0])
  numbers = [latest[key] for key in ('params', 'stats', 'opt')]
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(numbers))
  assert lines_of(tmp_path, 'validation')[-1]['step'] == 6
  assert '--pretrained' not in str(error.value)
  again = make_stage(tmp_path, **jump)
  again.members[0].advice = ' and --pretrained=RUN'  # as after a good pretraining
  with pytest.raises(loop.NonFiniteError, match=f'at step {step} .* another --workdir and --pretrained=RUN '):
    again.run()


@pytest.mark.parametrize('where', ['initial values', 'weights that the stage started from'])
def test_weights_that_are_not_finite_are_named(make_stage, tmp_path, where):
  """The gradients of other parameters are not finite either, so the message must name the broken weights."""
  stage = make_stage(tmp_path)
  (member,) = stage.members

  def broken(fresh):
    kernel = fresh['params']['encoder']['blocks']['mixer']['query']['kernel']
    fresh['params']['encoder']['blocks']['mixer']['query']['kernel'] = kernel.at[0, 0, 0].set(np.nan)
    return fresh

  if where == 'initial values':
    built, fresh_state = member.built, type(member.built).fresh_state
    object.__setattr__(built, 'fresh_state', lambda mesh: broken(fresh_state(built, mesh)))
  else:
    member.start = broken
  sentence = (
    f'because encoder/blocks/mixer/query/kernel held .* before step 0 already: look for it in .*{where}'
  )
  with pytest.raises(loop.NonFiniteError, match=sentence):
    stage.run()


def test_plateau_counters_survive_a_restart(make_stage, idle, monkeypatch, tmp_path):
  """The learning-rate scale after 3 epochs is the same with a restart after the second."""
  settings = {
    'finetune__schedule__name': 'plateau',
    'finetune__schedule__patience': 0,
    'finetune__schedule__factor': 0.5,
  }
  stage = make_stage(tmp_path, **settings)
  fake_metrics(monkeypatch, stage, [0.5, 0.4])
  with pytest.raises(StopIteration):
    stage.run()
  assert float(latest_of(stage.members[0])['control']['lr_scale']) == 0.5
  stage = make_stage(tmp_path, **settings)
  fake_metrics(monkeypatch, stage, [0.4, 0.5])
  stage.run()
  assert float(latest_of(stage.members[0])['control']['lr_scale']) == 0.25
