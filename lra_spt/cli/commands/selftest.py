"""`lra-spt selftest`: compares and times the kernels that a config could use on this machine."""

from lra_spt.cli import flags


def parser() -> flags.Parser:
  parser = flags.Parser(
    'selftest',
    'Compiles every implementation that the training steps of a config could use on the devices of this '
    'machine, compares values and gradients with the plain implementation, and times them. On accelerators, '
    'training does the same before it starts. Needs no data.',
    overrides=True,
  )
  flags.add_config(parser)
  parser.add_argument('--json', type=flags.path, help='also write the results to this file')
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  if arguments.json:
    flags.check_output('--json', arguments.json)
  import jax

  from lra_spt import files
  from lra_spt.config import loading
  from lra_spt.distributed import settings, sharding
  from lra_spt.runs import build
  from lra_spt.training import autotune

  run = build.resolve(loading.load(arguments.config, arguments.overrides))
  mesh = sharding.mesh_of(run.runtime)
  chosen = {}
  with settings.fixed(run.runtime.matmul_precision), jax.set_mesh(mesh):
    for name, built in build.stages_of(run).items():
      calls = autotune.calls_of(built.typical_program, built.abstract_step(mesh))
      chosen[name] = autotune.choose(calls, mesh)
      for call, tried in chosen[name].items():
        print(f'{name}: {tried["chosen"]} runs {call}')
  if not any(chosen.values()):
    print(f'{mesh.devices.flat[0].device_kind}: everything that this config uses has one implementation here')
  if arguments.json:
    files.write_json(arguments.json, chosen)
  return 0
