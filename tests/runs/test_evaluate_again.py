"""A finished run evaluated again has its result."""

import json
import shutil
import types

import numpy as np
import pytest

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.cli.commands import evaluate
from lra_spt.errors import ConfigError
from lra_spt.files import checksums
from lra_spt.report.runs import record, run_folder


def test_evaluating_again_gives_the_result(undisturbed, tiny_config, tiny_data, tmp_path, capsys):
  command = ['evaluate', f'--workdir={undisturbed}', f'--config={tiny_config}']
  assert cli.main([*command, '--split=test', f'--predictions={tmp_path / "p.npz"}']) == 0
  printed = capsys.readouterr().out
  result = json.loads((undisturbed / 'result.json').read_text())
  shown = f'test accuracy {100 * result["metrics"]["test"]["accuracy"]:.1f} % (95 % interval '
  assert printed.startswith(shown)
  assert 'over 24 examples, step' in printed
  assert 'Equal: result.json says' in printed
  assert '0 of 24 predictions differ from predictions.npz.' in printed
  stored, again = np.load(undisturbed / 'predictions.npz'), np.load(tmp_path / 'p.npz')
  for name in stored:
    np.testing.assert_array_equal(again[name], stored[name], strict=True)
  assert cli.main([*command, '--split=test', f'--predictions={tmp_path / "p.npz"}']) == 2
  assert 'which exists: name a new file' in capsys.readouterr().err
  assert cli.main([*command, '--split=validation', f'--data_dir={tiny_data}']) == 0
  printed = capsys.readouterr().out
  best = result['stages']['finetune']['metrics']
  assert f'  loss {best["loss"]:.6g}'[:9] in printed
  assert 'result.json' not in printed


def test_another_score_than_that_of_the_result_is_said(undisturbed, finetuned, tmp_path):
  metrics, arrays = finetuned.evaluate('test')
  shutil.copytree(undisturbed, tmp_path / 'W')
  path = tmp_path / 'W' / 'result.json'
  result = run_folder.read_result(path.parent)
  result['metrics']['test']['accuracy'] = 1.0
  checksums.write(path, result)
  same, sentence = evaluate.compare(tmp_path / 'W', metrics, arrays)
  assert not same
  assert sentence.startswith('NOT equal: result.json says 100.0 %, 0 of 24 predictions differ')
  path.unlink()
  _, sentence = evaluate.compare(tmp_path / 'W', metrics, arrays)
  assert sentence.endswith('has no result.json yet to compare with.')


def test_an_accuracy_of_groups_has_their_interval():
  """Answers are right for all 25 windows of 2 of 4 patients. The interval is Wilson's for 4 answers, with t
  of 3 degrees of freedom, and not for 100 answers."""
  group_N = np.repeat(np.arange(4), 25)
  arrays = {'index': np.arange(100), 'label': np.ones(100, int), 'prediction': (group_N < 2).astype(int)}
  run = types.SimpleNamespace(
    built=types.SimpleNamespace(objective=types.SimpleNamespace(selection=('accuracy', 'max'))),
    task=types.SimpleNamespace(groups=types.SimpleNamespace(name='patients'), per_position=False),
    step=7,
  )
  metrics = {'accuracy': 0.5, 'examples': 100}
  assert '(95 % interval 40.4 to 59.6 %)' in evaluate.describe(run, 'test', metrics, arrays)
  grouped = evaluate.describe(run, 'test', metrics, arrays | {'group': group_N})
  assert '(95 % interval 7.7 to 92.3 %)' in grouped
  assert 'no interval known' in evaluate.describe(run, 'test', metrics, arrays | {'group': 0 * group_N})


def test_only_answers_are_evaluated(config, undisturbed):
  with pytest.raises(ConfigError, match='no answers to be scored'):
    lra_spt.load_run(undisturbed, 'pretrain').evaluate('test')


def test_what_is_recorded_says_of_the_set_what_training_says(undisturbed, tiny_data, tmp_path, config):
  """A record of the run's predictions has the same values as the run where the prepared set decides them."""
  facts = record.StatedFacts(model='mine', regime='masked')
  ours = record.record(undisturbed / 'predictions.npz', tmp_path / 'W', facts, 'tiny_listops', tiny_data)
  theirs = run_folder.read_result(undisturbed)
  keys = ('task', 'metric', 'splits', 'fingerprints', 'data', 'regime', 'causal', 'protocol')
  assert {key: ours[key] for key in keys} == {key: theirs[key] for key in keys}
  wanted = {key: value for key, value in theirs['metrics']['test'].items() if key != 'loss'}
  assert ours['metrics']['test'] == pytest.approx(wanted, abs=1e-6)
  stored, again = np.load(undisturbed / 'predictions.npz'), np.load(tmp_path / 'W' / 'predictions.npz')
  assert set(stored) == set(again)
  for name in stored:
    np.testing.assert_array_equal(again[name], stored[name], strict=True)
