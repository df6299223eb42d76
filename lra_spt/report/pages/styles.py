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


SCRATCH = Style(colours.GREY)
# The arm of a regime in its own form, by (regime, whether the form is causal).
KNOWN = {
  ('scratch', False): SCRATCH,
  ('scratch', True): Style(colours.SILVER, '2 2'),
  ('masked', False): Style(colours.BLUE, '8 2 2 2'),
  ('causal', True): Style(colours.ORANGE, '4 1'),
}
# What is left for regimes registered from outside, and for other arms of a regime, which keep its colour.
OTHERS = (Style(colours.GREEN, '1 2'), Style(colours.PURPLE, '10 3'), Style(colours.RED, '3 3'))
VARIANTS = ('6 2', '12 3 1 3 1 3', '5 4 1 4', '2 5')


def of_regime(regime: str) -> Style:
  """The style of a regime's own arm, by itself."""
  known = KNOWN.get((regime, regime == 'causal'))
  return known or OTHERS[zlib.crc32(regime.encode()) % len(OTHERS)]


def styles(arms) -> dict[tuple[str, bool, str], Style]:
  """The style of every arm of a page.

  Args:
    arms: of (regime, whether the form is causal, name, whether that is the default name of the two).

  Returns:
    {(regime, causal, name): Style}. An arm that is known (scratch, masked, causal) never depends on the
    others; of two others whose first choice is the same, the later in the alphabet gets the next one.
  """
  arms = sorted(set(arms))
  unknown = sorted({regime for regime, *_ in arms} - {regime for regime, _ in KNOWN})
  of_unknown = dict(zip(unknown, _chosen(unknown, OTHERS), strict=True))
  found = {}
  for regime in sorted({regime for regime, *_ in arms}):
    others = []
    for arm in (arm for arm in arms if arm[0] == regime):
      _, causal, _, default = arm
      own = KNOWN.get((regime, causal)) or of_unknown.get(regime)
      if default and own and (regime not in of_unknown or arm[:2] == (regime, False)):
        found[arm[:3]] = own
      else:
        others.append(arm)
    colour = colours.BROWN if regime == 'scratch' else (of_unknown.get(regime) or of_regime(regime)).colour
    for arm, dash in zip(others, _chosen([arm[2] for arm in others], VARIANTS), strict=True):
      found[arm[:3]] = Style(colour, dash)
  return found


def _chosen(names, choices):
  """One of the choices for every name, the same in every page unless another name was there first."""
  free, chosen = [], []
  for name in names:
    free = free or list(range(len(choices)))
    first = zlib.crc32(name.encode()) % len(choices)
    number = min(free, key=lambda k: (k - first) % len(choices))
    free.remove(number)
    chosen.append(choices[number])
  return chosen
