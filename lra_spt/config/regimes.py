"""Regimes: the pretraining of a run, and the form of the mixer that it builds.

A regime is data: configs select one by its name in `REGIMES`, and runs and reports carry the name. To add one
of your own:

    register_regime(Regime('unshuffle', objective='unshuffle', options={'reach': 8}))
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lra_spt.errors import IMPORT_FIRST, ConfigError, nearest


@dataclasses.dataclass(frozen=True)
class Regime:
  """One answer to "how does a model start?".

  Attributes:
    name: of the regime.
    objective: what the model is pretrained on, a name given to
      `lra_spt.objectives.register_objective`; None for no pretraining.
    causal: True: both stages build the causal form of the mixer; False: the config's `causal` decides.
    options: {key: value} of the objective that configs of this regime have as pretrain.KEY, beside the keys
      of the task, such as mask_rate. They can be set on the command line.
  """

  name: str
  objective: str | None
  causal: bool = False
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)


_SPANS, _SHARE = {'span_lengths': (3, 8, 32)}, {'hidden_share': (0.25, 0.75)}
_PARTS = {'mixture': ('masked', 'spans', 'suffix', 'prefix'), 'mixture_weights': (1.0, 1.0, 1.0, 1.0)}
# The first one is the default of config files.
REGIMES = {
  regime.name: regime
  for regime in (
    Regime('masked', 'masked'),
    Regime('scratch', None),
    Regime('causal', 'causal', causal=True),
    Regime('spans', 'spans', options=_SPANS),
    Regime('suffix', 'suffix', options=_SHARE),
    Regime('prefix', 'prefix', options=_SHARE),
    Regime('mixture', 'mixture', options=_PARTS | _SPANS | _SHARE),
  )
}


def get_regime(name: str) -> Regime:
  """The regime of that name; otherwise a ConfigError that lists the known names."""
  if name not in REGIMES:
    raise ConfigError(
      f'regime is {name!r}; choose one of {", ".join(sorted(REGIMES))}.{nearest(name, REGIMES)}{IMPORT_FIRST}'
    )
  return REGIMES[name]


def register_regime(regime: Regime) -> Regime:
  """Registers a regime, so that `get_regime(regime.name)` returns it. An equal one may be registered again.

  Raises:
    ConfigError: it is no `Regime`, or a different one already has that name.
  """
  if not isinstance(regime, Regime):
    raise ConfigError(
      f"register_regime was given {regime!r}: give it a Regime, as in Regime('mine', 'masked')."
    )
  if REGIMES.setdefault(regime.name, regime) != regime:
    raise ConfigError(f'A different regime is already called {regime.name!r}; give the new one another name.')
  return regime
