"""Sets of BIDMC from tiny recordings or windows."""

from data_prep.sources import bidmc
from lra_spt.data import examples as examples_lib
from tests.data_prep.raw_sets import ACCEPT

RATE, WINDOW, STRIDE = 125, 250, 125
REFUSE = dict.fromkeys(ACCEPT, False)
SETS = ('bidmc_hr', 'bidmc_rr', 'bidmc_spo2')


def prepare(tmp_path, raw, **options):
  options = {'window': WINDOW, 'stride': STRIDE} | ACCEPT | options
  return bidmc.prepare_bidmc(tmp_path / 'data', raw_dir=raw, **options)


def stored(folder):
  source = examples_lib.open_source(str(folder), 'train')
  return [(source[i]['inputs'], source[i]['label']) for i in range(len(source))]
