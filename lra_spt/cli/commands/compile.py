"""`lra-spt compile`: the train step for a TPU slice, on a machine without a TPU."""

import json
import math
import pathlib

from lra_spt.cli import flags
from lra_spt.errors import touching

SEARCH_SECONDS = {'quick': 120.0, 'true': math.inf, 'false': 0.0}  # of a stage


def parser() -> flags.Parser:
  parser = flags.Parser(
    'compile',
    'Compiles the train step of a config for a TPU slice, without having one, or for CPU devices of this '
    'machine, and says whether it fits and what it costs.',
    overrides=True,
  )
  flags.add_config(parser)
  parser.add_argument('--topology', required=True, help='KIND:SHAPE of a TPU slice, e.g. v5e:4x4; or cpu:N')
  stage_help = 'only this stage (default: all stages of the run)'
  parser.add_argument('--stage', choices=('pretrain', 'finetune'), help=stage_help)
  smallest_help = (
    'look for the smallest slice on which it fits, by compiling for a few: quick (default) ends after two '
    'minutes a stage, with an estimate'
  )
  parser.add_argument('--smallest', choices=SEARCH_SECONDS, default='quick', help=smallest_help)
  parser.add_argument('--json', type=flags.path, help='also write the numbers to this file')
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  if arguments.json:
    flags.check_output('--json', arguments.json)
  flags.register(arguments)
  import jax

  from lra_spt.config import loading
  from lra_spt.runs.aot.compile import compile_stage
  from lra_spt.runs.build import resolve

  jax.config.update('jax_platforms', 'cpu')  # whatever this machine has: nothing runs
  jax.config.update('jax_enable_compilation_cache', False)  # programs for absent devices cannot be read back
  run = resolve(loading.load(arguments.config, arguments.overrides))
  results = {}
  for stage in [arguments.stage] if arguments.stage else run.stages:
    results[stage] = compile_stage(run, stage, arguments.topology, SEARCH_SECONDS[arguments.smallest])
    if arguments.json:  # after each stage: compiling the next may take long
      with touching(arguments.json, 'written'):
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=2) + '\n', encoding='utf-8')
  return 0
