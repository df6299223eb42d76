"""The picture of the rooms on docs/design.md: what imports what, and what lies on disk between them."""

from matplotlib import patches, pyplot

# Room: (what it holds, left, bottom, width), in units of the picture; a row is 1 high.
ROOMS = {
  'cli, commands': ('a module per command', 0, 8, 4),
  'studies, fit': ('many runs; `compile`', 0, 7, 4),
  'experiment, planning, build': ('one run; the reader of configs', 0, 6, 4),
  'training': ('step, loop, checkpoints', 0, 5, 4),
  'objectives': ('masked, causal, labels', 0, 4, 4),
  'models': ('mixers, encoder, heads', 0, 3, 4),
  'ops': ('kernels', 0, 2, 2),
  'data': ('tasks, splits, batches', 2.15, 2, 1.85),
  'parallel': ('mesh, shard_map', 0, 1, 2),
  'errors, files, seals, config, protocol, regimes': ('leaves', 0, 0, 8.6),
  'report': ('statistics, tables, pages', 6.2, 6, 2.4),
  'inspection': ('contents of a set', 6.2, 3.5, 2.4),
  'data_prep': ('downloads, generators', 6.2, 1.5, 2.4),
}
DISK = {'run folders': (4.55, 6), 'prepared sets': (4.55, 2.5)}
WRITTEN, READ = '#0b62a4', '#8b949e'
FLOWS = [  # from, to, colour: along a row, or up and down a column
  ((4, 6.4), (4.55, 6.4), WRITTEN),
  ((5.85, 6.4), (6.2, 6.4), READ),
  ((6.2, 2.1), (5.85, 2.75), WRITTEN),
  ((5.85, 3.1), (6.2, 3.8), READ),
  ((4.55, 2.75), (4, 2.4), READ),
]
NO_JAX = {'data', 'report', 'inspection', 'data_prep', 'errors, files, seals, config, protocol, regimes'}


def draw(ink: str, rule: str):
  """The figure. ink, rule: colours of text and of lines."""
  figure, axes = pyplot.subplots(figsize=(9, 6.2), layout='constrained')
  for name, (what, left, bottom, width) in ROOMS.items():
    free = name in NO_JAX
    _box(axes, (left, bottom), width, 'round', '#eef4fa' if free else 'white', rule)
    axes.text(left + width / 2, bottom + 0.5, name, ha='center', color=ink, weight='bold', fontsize=9)
    axes.text(left + width / 2, bottom + 0.22, what.replace('`', ''), ha='center', color=ink, fontsize=8)
  for name, (left, bottom) in DISK.items():
    _box(axes, (left, bottom), 1.3, 'square', '#fdf3e4', rule)
    axes.text(left + 0.65, bottom + 0.37, name, ha='center', color=ink, fontsize=8, style='italic')
  for start, end, colour in FLOWS:
    axes.annotate('', end, start, arrowprops={'arrowstyle': '-|>', 'color': colour, 'lw': 1.4})
  axes.text(
    4.2,
    8.4,
    'A room imports from those below it, on the right also from data;\n'
    'only studies and commands import from the right. Blue rooms do\n'
    'without jax. Arrows: who writes and who reads.',
    color=ink,
    fontsize=8.5,
    va='center',
  )
  axes.set_xlim(-0.1, 8.75)
  axes.set_ylim(-0.1, 9)
  axes.set_axis_off()
  return figure


def _box(axes, corner, width, style, colour, rule):
  box = patches.FancyBboxPatch(
    corner, width, 0.8, boxstyle=f'{style},pad=0.02', facecolor=colour, edgecolor=rule, lw=1
  )
  axes.add_patch(box)
