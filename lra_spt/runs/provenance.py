"""The provenance of a result: package versions, commit, hardware, settings of jax."""

import contextlib
import importlib.metadata
import os
import pathlib
import subprocess

import jax

from lra_spt.config.runtime import RuntimeSpec
from lra_spt.distributed import processes, settings

PACKAGES = (
  'lra_spt',
  'jax',
  'jaxlib',
  'flax',
  'optax',
  'orbax-checkpoint',
  'grain',
  'tensorflow-datasets',
  'ml_collections',
  'clu',
  'numpy',
)


def versions() -> dict[str, str]:
  """The installed version of each of PACKAGES."""
  installed = {}
  for package in PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      installed[package] = importlib.metadata.version(package)
  return installed


def commit() -> str | None:
  """The commit of the checkout with the running code, plus '+' if files differ; None outside of one."""

  def git(*arguments):
    command, here = ['git', *arguments], pathlib.Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()

  try:
    changed = git('status', '--porcelain', '--untracked-files=no')
    return git('rev-parse', '--short=12', 'HEAD') + ('+' if changed else '')
  except (OSError, subprocess.SubprocessError):
    return None


def hardware() -> dict:
  """The machine: platform, device kind and count, processes, host cores and memory (GiB), and the precision
  of float32 matrix products ('default': the platform's)."""
  return {
    'platform': jax.default_backend(),
    'device_kind': jax.devices()[0].device_kind,
    'devices': jax.device_count(),
    'processes': jax.process_count(),
    'cpu_count': os.cpu_count(),
    'host_memory_gib': round(processes.host_memory() / 2**30, 1),
    'cpu': _cpu_name(),
    'matmul_precision': jax.config.jax_default_matmul_precision or 'default',
  }


def computed(runtime: RuntimeSpec) -> dict:
  """Lists what the numbers of a stage depend on besides config and data; `settings` are those in force."""
  return {
    'commit': commit(),
    'hardware': hardware(),
    'versions': versions(),
    'precision': runtime.precision,
    'prng': runtime.prng,
    'settings': settings.in_force(),
  }


def changes(before: dict, now: dict, *, precisions_only: bool = False) -> list[str]:
  """Phrases such as 'prng rbg instead of threefry2x32', for precisions, generator, versions and settings that
  differ between two contents of `computed`. Facts that only one of them has are left out."""

  def facts(content):
    known = content | content.get('hardware', {})
    precisions = {key: known[key] for key in ('precision', 'matmul_precision') if key in known}
    if precisions_only or 'settings' not in content:
      return precisions
    named = {'prng': content['prng']} | content['versions']
    return precisions | named | dict.fromkeys(settings.VARIABLES) | content['settings']

  old, new = facts(before), facts(now)
  return [f'{key} {new[key]} instead of {old[key]}' for key in new if key in old and new[key] != old[key]]


def _cpu_name() -> str | None:
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as lines:
      return next((line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')), None)
  except OSError:
    return None
