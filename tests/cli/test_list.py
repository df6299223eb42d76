"""The commands list and config."""

import re

from configs import rows
from lra_spt.cli import main as cli
from lra_spt.config import loading, schema
from lra_spt.data import tasks


def test_list_shows_every_kind(capsys):
  assert cli.main(['list']) == 0
  printed = capsys.readouterr().out
  for kind, name in [
    ('tasks', 'image'),
    ('models', 's4d'),
    ('sets', 'cifar10'),
    ('configs', 'configs/image.py'),
  ]:
    assert f'{kind}:\n' in printed
    assert f'\n  {name} ' in printed
  assert 'Image (LRA): grayscale CIFAR-10' in printed


def test_list_of_parameters_has_names_for_patterns(capsys):
  assert cli.main(['list', '--parameters=configs/demo.py:regime=masked']) == 0
  *rows, head = capsys.readouterr().out.splitlines()
  names = [row.split()[0] for row in rows]
  assert 'blocks/mixer/query/kernel' in names
  assert 'embed/bias' in names
  assert rows[names.index('embed/bias')].split()[1:] == ['64', '64']
  assert head == 'The head has 260 more and always trains.'


def test_list_of_one_kind_knows_what_a_file_registers(capsys, tmp_path):
  (tmp_path / 'mine.py').write_text(
    'import dataclasses\nfrom lra_spt.data import tasks\n'
    "tasks.register_task(dataclasses.replace(tasks.get_task('listops'), name='listed_here'))\n"
  )
  assert cli.main(['list', 'tasks', f'--register={tmp_path}/mine.py']) == 0
  printed = capsys.readouterr().out
  assert '\n  listed_here ' in printed
  assert 'models:' not in printed
  tasks.TASKS.pop('listed_here')


def test_config_prints_every_value_with_its_origin(capsys):
  arguments = ['configs/image.py:model=s4', '--config.finetune.optimizer.lr', '0.5', '--config.seed=3']
  assert cli.main(['config', *arguments]) == 0
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert ['seed', '3', 'command', 'line'] in lines
  assert ['protocol', 'clean', 'ours'] in lines
  section = lines[lines.index(['[finetune]']) :]
  assert ['optimizer.lr', '0.5', 'command', 'line'] in section
  assert ['batch_size', '512', 'paper'] in section
  assert ['mixer.state_size', '64', 'code'] in lines
  ours = loading.load('configs/image.py:model=s4')
  assert len([line for line in lines if len(line) > 1]) == len(loading.keys(ours))


def test_every_key_says_what_it_means(capsys):
  """Every key of every config has a meaning, and every meaning a key; options of mixers are left out."""
  assert cli.main(['config', 'configs/image.py:model=s4', '--about']) == 0
  printed = capsys.readouterr().out
  assert re.search('^patience +0 +code +validations without improvement', printed, re.MULTILINE)
  files = ['image.py:model=s4', 'listops.py', 'bidmc.py', 'pythia.py:task=image', 'image.py:regime=mixture']
  files += [f'image.py:model={name}' for name in rows.other_models()]
  used = {key for file in files for key in loading.keys(loading.load(f'configs/{file}'))}
  used = {key for key in used if not key.startswith('model.mixer.') or key == 'model.mixer.name'}
  assert used - schema.meanings().keys() == set()
  assert schema.meanings().keys() - used == set()
