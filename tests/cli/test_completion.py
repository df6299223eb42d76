"""Shell completion in a real bash, which passes the line as at a TAB."""

import os
import subprocess
import sys

import pytest

LINES = {  # line: words that must be offered
  'lra-spt tra': ['train'],
  'lra-spt train --dry': ['--dry_run'],
  'lra-spt train --config=configs/path': ['configs/pathfinder.py', 'configs/pathx.py'],
  'lra-spt train --config configs/text': ['configs/text.py'],
  'lra-spt train --config=configs/image.py:model=dlr': ['dlr', 'dlr_random'],
  'lra-spt train --config=configs/image.py:model=s4,reg': ['s4,regime='],
  'lra-spt train --config=configs/image.py --config.finetune.optimizer.b': [
    '--config.finetune.optimizer.b1',
    '--config.finetune.optimizer.b2',
  ],
  'lra-spt config mi': ['mine.py'],
  'lra-spt study configs/studies/table2': ['configs/studies/table2.py'],
  'lra-spt compile --stage=pre': ['pretrain'],
  'lra-spt prepare strip': ['stripes'],
  'lra-spt inspect sci': ['scifar'],
  'lra-spt list mo': ['models'],
  'lra-spt train --workdir=fol': ['folder/'],
}


@pytest.fixture(scope='module')
def completed(repository, tmp_path_factory):
  """{line: list of the words that bash offers}, of LINES."""
  folder = tmp_path_factory.mktemp('completion')
  (folder / 'folder').mkdir()
  (folder / 'mine.py').write_text('')
  (folder / 'jax.py').write_text('raise SystemExit')  # an import of jax would end the completion
  script = 'import sys; from lra_spt.cli import main; sys.exit(main.command())'
  (folder / 'lra-spt').write_text(f'#!/bin/sh\nexec {sys.executable} -c "{script}" "$@"\n')
  (folder / 'lra-spt').chmod(0o755)
  register = f'{sys.executable} -m argcomplete.scripts.register_python_argcomplete lra-spt'
  commands = ['compopt() { :; }', f'eval "$({register})"']
  for line in LINES:
    point = f'COMP_LINE="{line}" COMP_POINT={len(line)} COMP_TYPE=9'
    commands.append(f'COMPREPLY=(); {point}; _python_argcomplete lra-spt')
    commands.append(r'printf "%s\t" "${COMPREPLY[@]}"; echo')
  done = subprocess.run(
    ['bash', '-c', '\n'.join(commands)],
    cwd=folder,
    env=os.environ | {'PYTHONPATH': f'{folder}:{repository}', 'PATH': f'{folder}:{os.environ["PATH"]}'},
    capture_output=True,
    text=True,
    timeout=120,
  )
  words = [line.rstrip('\t').split('\t') for line in done.stdout.splitlines()]
  return dict(zip(LINES, words, strict=True))


@pytest.mark.parametrize('line', LINES)
def test_bash_completes(completed, line):
  assert sorted(completed[line]) == LINES[line]
