"""Colour and dash of every arm, the same in every chart and report."""

import dataclasses
import zlib

from lra_spt.report.pages import colours


@dataclasses.dataclass(frozen=True)
class Style:
  """colour: number of the page's line colour. dash: lengths of strokes and gaps in points, '' for a solid
  line; dashes tell lines apart without colour."""

  colour: int
  dash: str = ''


# The arm of a regime in its own form, by (regime, whether the form is causal).
KNOWN = {
  ('scratch', False): Style(colours.GREY),
  ('scratch', True): Style(colours.SILVER, '2 2'),
  ('masked', False): Style(colours.BLUE, '8 2 2 2'),
  ('causal', True): Style(colours.ORANGE, '4 1'),
}
TIED = Style(colours.BROWN, '6 2')  # from scratch for the steps of both stages
OTHERS = (Style(colours.GREEN, '1 2'), Style(colours.PURPLE, '10 3'), Style(colours.RED, '3 3'))
# Rows of a study take these by turns.
BY_TURNS = tuple(
  Style(colour, dash)
  for dash in ('', '8 2', '2 2')
  for colour in (
    colours.BLUE,
    colours.ORANGE,
    colours.GREEN,
    colours.PURPLE,
    colours.RED,
    colours.BROWN,
    colours.GREY,
  )
)


def of_regime(regime: str, causal: bool | None = None, name: str = '') -> Style:
  """The style of an arm.

  Args:
    regime: of the arm.
    causal: whether its form is causal; by default the form of the regime.
    name: of the arm in reports.
  """
  if regime == 'scratch' and 'compute-tied' in name:
    return TIED
  known = KNOWN.get((regime, regime == 'causal' if causal is None else causal))
  return known or OTHERS[zlib.crc32(f'{regime}{causal or ""}'.encode()) % len(OTHERS)]


def of_row(number: int) -> Style:
  return BY_TURNS[number % len(BY_TURNS)]
