"""What a TAB completes: the words that can come next, and the printed scripts in real shells."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from lra_spt.cli.commands import completion


@pytest.mark.parametrize(
  'line, words',
  [
    ('lra-spt tra', ['train']),
    ('lra-spt train --dry', ['--dry_run']),
    ('lra-spt train --workd', ['--workdir=']),
    ('lra-spt train --config=configs/path', ['--config=configs/pathfinder.py', '--config=configs/pathx.py']),
    ('lra-spt train --config configs/text', ['configs/text.py']),
    ('lra-spt train --config=configs/image.py:model=dlr', ['dlr', 'dlr_random']),
    ('lra-spt train --config=configs/image.py:model=s4,reg', ['regime=']),
    ('lra-spt train --config=configs/image.py --config.finetune.optimizer.b', ['b1=', 'b2=']),
    ('lra-spt train --config=configs/image.py --config.seed=', []),
    ('lra-spt config configs/dem', ['configs/demo.py']),
    ('lra-spt compile --stage=pre', ['--stage=pretrain']),
    ('lra-spt prepare strip', ['stripes']),
    ('lra-spt inspect sci', ['scifar']),
    ('lra-spt list mo', ['models']),
    ('lra-spt train --workdir=fol', ['--workdir=folder/']),
    ('lra-spt train --workdir=folder/', ['--workdir=folder/below']),
    ('lra-spt train --stages=fol', ['--stages=folder/']),
    ('lra-spt absent --', []),
  ],
)
def test_completion_knows_what_can_come_next(line, words, tmp_path, monkeypatch):
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'folder' / 'below').write_text('')
  monkeypatch.chdir(tmp_path)
  found = completion.words(line)
  assert all(one.endswith(word) for one, word in zip(found, words, strict=True))
  assert all(one.startswith(line.rpartition(' ')[2]) for one in found)


@pytest.fixture
def with_command(repository, tmp_path):
  """Environment of a shell that finds `lra-spt`."""
  (tmp_path / 'lra-spt').write_text(f'#!/bin/sh\nexec {sys.executable} -m lra_spt "$@"\n')
  (tmp_path / 'lra-spt').chmod(0o755)
  return os.environ | {'PYTHONPATH': str(repository), 'PATH': f'{tmp_path}:{os.environ["PATH"]}'}


def test_bash_completes(with_command, tmp_path):
  """The printed script in a real bash, which hands the function what it hands it at a TAB."""
  script = """
eval "$(lra-spt completion bash)"
complete -p lra-spt
compopt() { :; }
for COMP_LINE in 'lra-spt tr' 'lra-spt train --config=configs/image.py:mo' 'lra-spt kernels --stage='; do
  COMP_POINT=${#COMP_LINE}; _lra_spt; echo "${COMPREPLY[*]}"
done
"""
  done = subprocess.run(
    ['bash', '-c', script], env=with_command, cwd=tmp_path, capture_output=True, text=True, timeout=120
  )
  assert done.stdout.splitlines() == ['complete -F _lra_spt lra-spt', 'train', 'model=', 'pretrain finetune']


@pytest.mark.skipif(not shutil.which('zsh'), reason='zsh is not installed')
@pytest.mark.parametrize(
  'line, completed',
  [
    ('lra-spt tra', 'lra-spt train '),
    ('lra-spt train --config=configs/image.py:mo', 'lra-spt train --config=configs/image.py:model=#'),
    ('cd . && lra-spt kernels  --stage=p', 'cd . && lra-spt kernels  --stage=pretrain '),
    ('lra-spt train --workdir=fol', 'lra-spt train --workdir=folder/#'),
  ],
)
def test_zsh_completes(with_command, tmp_path, line, completed):
  """A TAB typed into a real zsh; # comes where the next letter would, at once or after a space."""
  (tmp_path / 'folder').mkdir()
  setup = 'autoload -Uz compinit; compinit -D; eval "$(lra-spt completion zsh)"; bindkey "^I" complete-word'
  environment = with_command | {'TERM': 'dumb', 'COLUMNS': '200', 'PS1': '', 'ZDOTDIR': str(tmp_path)}
  master, slave = pty.openpty()
  shell = subprocess.Popen(
    ['zsh', '-f', '-i'], stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path, env=environment
  )
  os.close(slave)
  try:
    seen = ''

    def wait_for(text):
      nonlocal seen
      deadline = time.monotonic() + 30
      while text not in seen and time.monotonic() < deadline:
        if select.select([master], [], [], 1)[0]:
          seen += os.read(master, 4096).decode(errors='replace')
      assert text in seen

    os.write(master, f'{setup}; echo rea""dy\n'.encode())
    wait_for('ready\r\n')
    seen = ''
    os.write(master, f'{line}\t#'.encode())  # read when the completion is there
    wait_for(completed)
  finally:
    shell.kill()
    shell.wait()
    os.close(master)
