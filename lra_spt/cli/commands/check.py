"""`lra-spt check`: checks the contract of the mixers of a config."""

from lra_spt.cli import flags


def parser() -> flags.Parser:
  parser = flags.Parser(
    'check',
    'Checks the mixer of a config, or each of a hybrid: shape and dtype, no look-ahead in the causal form, '
    'padding ignored, rows of a batch independent, finite gradients, randomness only from its keys. Training '
    'runs the same checks before it starts with a mixer of your own. Needs no data.',
    overrides=True,
  )
  flags.add_config(parser)
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  from lra_spt.config import loading
  from lra_spt.runs import build

  built = build.build(build.resolve(loading.load(arguments.config, arguments.overrides)), 'finetune')
  form = 'causal' if built.mixer.causal else 'bidirectional'
  for mixer in built.mixer.period:
    print(f'{built.model_name} on {built.task.name}: mixer {mixer.name}, {form} form')
    for sentence in built.check_mixer(mixer):
      print(f'  ok: {sentence}')
    if mixer.lacks_flops:
      print('  note: the mixer has no method flops(length), so operations count its weight matrices only')
  return 0
