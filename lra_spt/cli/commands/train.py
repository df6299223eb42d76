"""`lra-spt train`: one run, or one per seed and per listed learning rate and weight decay."""

import itertools
import re

from lra_spt import files
from lra_spt.cli import flags
from lra_spt.config.regimes import get_regime
from lra_spt.errors import ConfigError, NonFiniteError, counted


def parser() -> flags.Parser:
  parser = flags.Parser(
    'train',
    'Trains one run: pretraining (unless regime=scratch), finetuning, test. The same command on the same '
    'workdir resumes it.',
    overrides=True,
  )
  flags.add_config(parser)
  parser.add_argument('--workdir', required=True, help='folder of this run')
  parser.add_argument(
    '--seeds',
    type=flags.seeds,
    help='0,1,2 or 0..2: one run per seed, in the folders seed0, seed1, ... of workdir; '
    '--config.runtime.members=K trains K of them as one program',
  )
  parser.add_argument(
    '--pretrained',
    metavar='RUN',
    help='folder of another run whose pretrained model is finetuned (with --seeds: RUN/seed0, ... if they '
    'exist)',
  )
  parser.add_argument(
    '--stages',
    metavar='DIR',
    help='folder of stages that several runs can share (default: the folder of each run, or workdir/stages '
    'where learning rates or weight decays are listed)',
  )
  parser.add_argument(
    '--dry_run', action='store_true', help='only check everything and say what would be run'
  )
  smoke_help = 'a few steps of each stage, to see that everything works; the numbers mean nothing'
  parser.add_argument('--smoke', action='store_true', help=smoke_help)
  parser.add_argument('--quiet', action='store_true', help='print only the result')
  flags.add_register(parser)
  flags.add_accept_changed_code(parser)
  flags.add_joining(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  configs = _configs(arguments)  # all are read before the first run starts
  from lra_spt.distributed import processes
  from lra_spt.report.runs import run_folder

  for _, workdir, _ in configs:
    run_folder.folder_of(workdir, '--workdir')
  processes.start_processes(**flags.joining(arguments))
  from lra_spt.distributed import heartbeat

  with processes.heeding_signals(), heartbeat.watched():
    _train(arguments, configs)
  return 0


def _train(arguments, configs):
  """Trains runs, as many at a time as runtime.members says, or describes them."""
  from lra_spt.config import loading
  from lra_spt.distributed import processes
  from lra_spt.runs import experiment
  from lra_spt.runs.active_run import ActiveRun
  from lra_spt.runs.build import resolve

  announce = (lambda line: None) if arguments.quiet else print
  runs = [ActiveRun(resolve(config), workdir, pretrained) for config, workdir, pretrained in configs]
  members, stages, failures = runs[0].spec.runtime.members, arguments.stages, []
  if stages is None and loading.lists(arguments.overrides)[0]:  # rates of finetuning share one pretraining
    stages = f'{arguments.workdir}/stages'
  for start in range(0, len(runs), members):
    together = runs[start : start + members]
    if arguments.dry_run:
      for run in together:
        print(describe(run, len(together)))
      continue
    experiment.keep_compiled(arguments.workdir)
    places = [run.workdir for run in together]  # as the user wrote them
    try:
      results = experiment.run_together(together, stages=stages, arm=_arm(arguments), announce=announce)
    except NonFiniteError as error:  # other rates or seeds may do better
      if len(together) == len(runs):
        raise
      failures.append(str(error) if len(together) > 1 else f'{places[0]}: {error}')
      announce(f'lra-spt: {failures[-1]}')
      continue
    for place, result in zip(places, results, strict=True):
      if arguments.quiet and processes.is_first():
        metric, metrics = result['metric'], result['metrics']
        value = metrics['test'][metric]
        shown = metrics['undefined']['test'][metric] if value is None else f'test {metric} {value:.4f}'
        print(f'{place}: {shown}')
  if failures:
    raise NonFiniteError(
      f'{counted(len(failures), "training")} failed, all others finished: {"; ".join(failures)}'
    )


def _arm(arguments) -> str | None:
  """Returns the name of runs that the demo's config makes compute-tied, or None. A report of these runs alone
  cannot see that they are."""
  words = re.split('[:, ]+', arguments.config)
  if 'tied=true' not in words or any('max_steps' in pair for pair in arguments.overrides):
    return None
  return 'scratch, causal form, compute-tied' if 'causal=true' in words else 'scratch, compute-tied'


def _configs(arguments) -> list[tuple]:
  """Returns (config, workdir, run whose pretraining is taken) for every seed with every listed value."""
  from lra_spt.config import loading

  def load(overrides):
    config = loading.load(arguments.config, overrides)
    if arguments.smoke:
      loading.shorten(config)
    if arguments.quiet:
      config.runtime.progress = False
    return config

  listed, overrides = loading.lists(arguments.overrides)
  first = load([*overrides, *(f'{key}={each[0]}' for key, each in listed.items())])
  if get_regime(first.regime).objective is None and (
    vain := [key for key in listed if key.startswith('pretrain.')]
  ):
    raise ConfigError(f'{vain[0]} lists values, but regime={first.regime} has no pretraining: leave it out.')
  seeds, members = arguments.seeds, first.runtime.get('members', 1)
  if members < 1:
    raise ConfigError(f'runtime.members is {members}, but it must be at least 1; correct it')
  if seeds is None and not listed and members > 1:
    seeds = range(first.seed, first.seed + members)
    overrides = [pair for pair in overrides if not pair.startswith('seed=')]  # the seed of the first run
  elif seeds is not None and re.search(r'\.py:(.*,)?\s*seed\s*=', arguments.config):
    raise ConfigError(f'--seeds and the seed in --config={arguments.config} exclude each other: keep one.')
  if seeds is None and not listed:
    return [(first, arguments.workdir, arguments.pretrained)]
  choices = [[f'seed={seed}' for seed in seeds]] if seeds is not None else []
  choices += [[f'{key}={value}' for value in values] for key, values in listed.items()]
  return [
    (
      load([*overrides, *chosen]),
      f'{arguments.workdir}/{_name(chosen)}',
      _pretrained(arguments.pretrained, chosen),
    )
    for chosen in itertools.product(*choices)
  ]


def _name(chosen) -> str:
  """The folder of one of several runs: seed0, or seed0,finetune.optimizer.lr=0.001."""
  return ','.join(item.replace('seed=', 'seed') if item.startswith('seed=') else item for item in chosen)


def _pretrained(run: str | None, chosen) -> str | None:
  """The run whose pretraining is taken: the one of the same seed, if `run` has a folder for each seed."""
  seed = next((item.replace('=', '') for item in chosen if item.startswith('seed=')), '')
  return str(below) if run and seed and (below := files.place(run) / seed).is_dir() else run


def describe(run, members: int) -> str:
  """Describes the stages, steps, parameters, batches and devices of an `ActiveRun`, and checks it."""
  from lra_spt.data import scorable
  from lra_spt.report.runs import run_folder
  from lra_spt.runs import plan as planning
  from lra_spt.runs import stage_report

  spec, run.workdir = run.spec, files.place(run.workdir)
  plan, remarks = planning.plan(spec, run.pretrained, members=members), []
  run.identify(plan, remarks.append)
  run_folder.check_claim(run.workdir, run.identity)
  shape = ', '.join(f'{axis}={size}' for axis, size in plan.mesh.shape.items())
  device = plan.mesh.devices.flat[0].device_kind
  lines = [
    f'{spec.model.name} on {spec.task.name}, regime {spec.regime.name}, protocol {spec.values["protocol"]}, '
    f'seed {spec.seed}',
    f'workdir   {run.workdir} ({_state(run.workdir)})',
    f'data      {spec.runtime.data_dir}: '
    + ', '.join(f'{len(examples):,} {split}' for split, examples in plan.data.items()),
    f'devices   {plan.mesh.size} of kind {device} ({shape})',
  ]
  for name, built in plan.stages.items():
    if name == 'pretrain' and plan.taken is not None:
      lines.append(f'{name:<9} taken from {plan.taken.folder}')
      continue
    used = len(built.train_examples(plan.data))
    lines.append(
      f'{name:<9} {built.model.parameter_count:,} parameters, {stage_report.limit(built.spec, used)}, '
      f'{built.operations} FLOPs a step'
    )
  lines += [*remarks, *scorable.remarks(plan.data)]
  return '\n'.join([*lines, '', plan.parameter_table, 'Nothing was written: this was --dry_run.'])


def _state(workdir):
  from lra_spt.report.runs import run_folder

  if (workdir / run_folder.RESULT).exists():
    run_folder.read_result(workdir)
    return 'a finished run: would not be trained again'
  return 'would be resumed' if (workdir / run_folder.CONFIG).exists() else 'new'
