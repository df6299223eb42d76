"""`lra-spt train`: one run, or one per seed."""

import re

from lra_spt import files, flags
from lra_spt.errors import ConfigError


def parser() -> flags.Parser:
  parser = flags.Parser(
    'train',
    'One run: pretraining (unless regime=scratch), finetuning, test. The same command on the same workdir '
    'resumes it.',
    overrides=True,
  )
  flags.add_config(parser)
  parser.add_argument('--workdir', required=True, help='folder of this run')
  parser.add_argument(
    '--seeds',
    type=flags.seeds,
    help='0,1,2 or 0..2: a run per seed, in the folders seed0, seed1, ... of workdir',
  )
  parser.add_argument(
    '--pretrained',
    metavar='RUN',
    help='folder of another run whose pretraining is finetuned (with --seeds: RUN/seed0, ... where they are)',
  )
  parser.add_argument(
    '--stages',
    metavar='DIR',
    help='folder in which stages are kept for all runs that need the same ones; default: in workdir',
  )
  parser.add_argument(
    '--dry_run', action='store_true', help='only check everything and say what would be run'
  )
  smoke_help = 'a few steps of each stage, to see that everything works; the numbers mean nothing'
  parser.add_argument('--smoke', action='store_true', help=smoke_help)
  parser.add_argument('--quiet', action='store_true', help='print the result and nothing else')
  flags.add_register(parser)
  parser.add_argument(
    '--distributed',
    action='store_true',
    default=None,
    help='join the processes of a cluster (on by itself on Cloud TPU, SLURM, Kubernetes)',
  )
  parser.add_argument('--coordinator', help='host:port of process 0, outside of a recognised cluster')
  parser.add_argument('--processes', type=flags.whole(1), help='number of processes, likewise')
  parser.add_argument('--process', type=flags.whole(0), help='rank of this process, likewise')
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  runs = list(_runs(arguments))  # all are read before the first one starts
  from lra_spt import peers, processes, run_folder

  for _, workdir, _ in runs:
    run_folder.folder_of(workdir, '--workdir')
  processes.start_processes(
    arguments.distributed, arguments.coordinator, arguments.processes, arguments.process
  )
  with processes.heeding_signals(), peers.watched():
    _train(arguments, runs)
  return 0


def _train(arguments, runs):
  from lra_spt import config as config_lib
  from lra_spt import experiment, processes

  for config, workdir, pretrained in runs:
    if arguments.smoke:
      config_lib.shorten(config)
    if arguments.quiet:
      config.runtime.progress = False
    if arguments.dry_run:
      print(describe(experiment.plan(config, pretrained), config, workdir))
      continue
    experiment.keep_compiled(arguments.workdir)
    announce = (lambda line: None) if arguments.quiet else print
    result = experiment.run(
      config, workdir, pretrained=pretrained, stages=arguments.stages, announce=announce
    )
    if arguments.quiet and processes.is_first():
      metric = result['metric']
      print(f'{workdir}: test {metric} {result["metrics"]["test"][metric]:.4f}')


def _runs(arguments):
  """(config, workdir, run whose pretraining is taken) of each run."""
  from lra_spt import config

  if arguments.seeds is None:
    loaded = config.load(arguments.config, arguments.overrides)
    yield loaded, arguments.workdir, arguments.pretrained
    return
  if re.search(r'\.py:(.*,)?\s*seed\s*=', arguments.config):
    raise ConfigError(f'--seeds and the seed in --config={arguments.config} exclude each other: keep one.')
  for seed in arguments.seeds:
    loaded = config.load(arguments.config, [*arguments.overrides, f'seed={seed}'])
    below = files.place(arguments.pretrained or '') / f'seed{seed}'
    pretrained = str(below) if arguments.pretrained and below.is_dir() else arguments.pretrained
    yield loaded, f'{arguments.workdir}/seed{seed}', pretrained


def describe(plan, config, workdir) -> str:
  """What would be run: stages, steps, parameters, batches, where; and the parameter table."""
  train = plan.data['train']
  shape = ', '.join(f'{axis}={size}' for axis, size in plan.mesh.shape.items())
  device = plan.mesh.devices.flat[0].device_kind
  lines = [
    f'{config.model.name} on {config.task}, regime {config.regime}, protocol {config.protocol}, '
    f'seed {config.seed}',
    f'workdir   {workdir} ({_state(files.place(workdir))})',
    f'data      {config.runtime.data_dir}: '
    + ', '.join(f'{len(examples):,} {split}' for split, examples in plan.data.items()),
    f'devices   {plan.mesh.size} of kind {device} ({shape})',
  ]
  for name, built in plan.stages.items():
    if name == 'pretrain' and plan.given is not None:
      lines.append(f'{name:<9} taken from {plan.given.folder}')
      continue
    used = len(train.part(built.spec.data_fraction))
    steps, batch = built.spec.total_steps(used), built.spec.batch_size
    lines.append(
      f'{name:<9} {built.model.parameter_count:,} parameters, at most {steps:,} steps of {batch} '
      f'({steps * batch / used:.4g} epochs), {built.flops_per_step:.3g} FLOPs a step'
    )
  return '\n'.join([*lines, '', plan.parameter_table, 'Nothing was written: this was --dry_run.'])


def _state(workdir):
  from lra_spt import run_folder

  if (workdir / run_folder.RESULT).exists():
    run_folder.read_result(workdir)
    return 'a finished run: would not be trained again'
  return 'would be resumed' if (workdir / run_folder.CONFIG).exists() else 'new'
