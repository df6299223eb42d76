"""Pictures of what self-pretraining does: images that a model restores, and the course of its finetuning."""

import numpy as np

from docs.costs import hardware, head, paragraph, percent
from lra_spt.report.pages import figures

GIVEN = '#d7e6f2'  # what the model does not see
SHADE = '#eef3f8'
CHANCE = 50.0  # of two classes


def beside_images(shown: dict, ink: str, rule: str):
  """A figure and its empty right side; on the left a line per image: as it is, what the model is given of it,
  what it restores.

  shown: of `benchmarks.demo_seeds.shown`.
  """
  figure, _ = figures.chart(9.6, 3.3, faint=ink, grid=rule)
  figure.clear()
  left, right = figure.subfigures(1, 2, width_ratios=(1, 1.25))
  original, hidden, restored = (np.array(shown[key]) for key in ('original', 'hidden', 'restored'))
  panels = left.subplots(len(original), 3)
  for row, axes in enumerate(panels):
    given = np.ma.masked_array(original[row], hidden[row])
    for axis, values in zip(axes, (original[row], given, restored[row]), strict=True):
      axis.set_facecolor(GIVEN)
      axis.imshow(values, cmap='gray', vmin=0, vmax=255)
      axis.set_xticks([])
      axis.set_yticks([])
      axis.spines[:].set_visible(False)
  for axis, name in zip(panels[0], ('image', 'given', 'restored'), strict=True):
    axis.set_title(name, color=ink, fontsize=9)
  return figure, right


def of_seeds(found: dict) -> list[str]:
  """Test accuracy and steps of every seed from scratch and after self-pretraining, a seed a line.

  found: of `benchmarks.mini_course`.
  """
  curves = {(one['regime'], one['seed']): one for one in found['curves']}
  lines = head(('seed', 'from scratch', 'steps', 'masked', 'steps'))
  for seed in sorted({seed for _, seed in curves}):
    scratch, masked = curves['scratch', seed], curves['masked', seed]
    before, after = masked['pretraining'], masked['step'][-1] - masked['pretraining']
    lines.append(
      f'| {seed} | {percent(scratch["test"])} % | {scratch["step"][-1]:,} '
      f'| {percent(masked["test"])} % | {before:,} + {after:,} |'
    )
  rows = ' and '.join(f'`{row}`' for row in found['rows'].values())
  told = f'Test accuracy in the cells {rows} of {found["column"]} ({hardware(found)}; `{found["command"]}`'
  return [*lines, '', *paragraph(f'{told} reads them where they were trained).')]


def draw(found: dict, ink: str, rule: str, colours: dict[str, str]):
  """The figure, within `figures.style`: three images, and validation over both stages, a line per seed.

  found: of `benchmarks.mini_course`. colours: {regime: of its lines}.
  """
  figure, curves = beside_images(found['images'], ink, rule)
  axes = curves.subplots()
  axes.spines[['top', 'right']].set_visible(False)
  before = max(one['pretraining'] for one in found['curves'])
  axes.axvspan(0, before, color=SHADE, lw=0)
  axes.text(before / 2, 97, 'self-pretraining', color=ink, ha='center', va='top', fontsize=9)
  axes.axhline(CHANCE, color=rule, lw=0.8, ls=':')
  for one in found['curves']:
    first = one['seed'] == min(other['seed'] for other in found['curves'])
    name = {'scratch': 'from scratch', 'masked': 'after masked self-pretraining'}[one['regime']]
    score = 100 * np.array(one['score'])
    axes.plot(one['step'], score, color=colours[one['regime']], lw=1.5, label=name if first else None)
  axes.set_xlim(left=0)
  axes.set_ylim(40, 100)
  axes.set_xlabel('steps of both stages', color=ink)
  axes.set_ylabel('accuracy on validation, %', color=ink)
  axes.tick_params(colors=ink, length=0)
  axes.legend(frameon=False, labelcolor=ink, loc='center left')
  return figure
