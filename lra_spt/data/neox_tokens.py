"""Our tokens as those of GPT-NeoX (Black et al. 2022), whose vocabulary Pythia shares; from its tokenizer.

One of ours is one of theirs, so that their embedding, its rows in our order, does what theirs does.
"""

from collections.abc import Sequence

import numpy as np

END_OF_TEXT, PADDING = 0, 1
FREE = 50277  # the first row of their embedding that no token has
SPECIAL = {'<eos>': END_OF_TEXT, '<unk>': END_OF_TEXT, '<pad>': PADDING, '<mask>': FREE}
# An operator is two tokens there, `[` and its name, and the published code has letters for it (`listops_an`).
OPERATORS = {'[MAX': 'A', '[SM': 'B', '[MED': 'C', '[MIN': 'D'}
# U+0080 to U+00FF; -1: more than one token.
_UPPER = (  # fmt: skip
  9589,
  12410,
  8381,
  10778,
  13854,
  16643,
  18455,
  18994,
  14681,
  24372,
  26261,
  20587,
  13348,
  22015,
  28372,
  21824,
  23794,
  19819,
  17719,
  27399,
  15802,
  17237,
  25371,
  12555,
  20006,
  20236,
  20054,
  33307,
  16605,
  20475,
  34210,
  24625,
  575,
  15774,
  23696,
  14775,
  12385,
  11190,
  26218,
  7803,
  20335,
  17737,
  19964,
  12391,
  23215,
  6319,
  8942,
  15500,
  3272,
  3069,
  15818,
  19281,
  11679,
  9003,
  7307,
  6256,
  11466,
  17583,
  11703,
  6234,
  11199,
  8313,
  12136,
  12402,
  -1,
  -1,
  7974,
  5022,
  37515,
  18221,
  -1,
  -1,
  -1,
  17483,
  -1,
  -1,
  -1,
  -1,
  13026,
  24029,
  5186,
  8568,
  -1,
  -1,
  -1,
  -1,
  45403,
  6027,
  13377,
  15097,
  47440,
  30041,
  -1,
  -1,
  -1,
  10278,
  5991,
  1757,
  6457,
  3312,
  1392,
  2768,
  5507,
  3314,
  3539,
  860,
  5437,
  10093,
  12931,
  1950,
  18513,
  12589,
  25500,
  6621,
  17090,
  1954,
  9837,
  10100,
  2381,
  -1,
  7256,
  14096,
  6187,
  24690,
  3090,
  10561,
  -1,
  -1,
)
_OTHERS = {'\u2013': 1253, '\u2019': 457, '\u2026': 2866}


def token_ids(vocabulary: Sequence[str]) -> np.ndarray:
  """int32 [len(vocabulary)]: their id of each of our tokens; that of the end of a text (as `<unk>` has) for a
  character that is several tokens there."""
  names = [OPERATORS.get(token, token) for token in vocabulary]
  return np.array([SPECIAL[name] if name in SPECIAL else _of_character(name) for name in names], np.int32)


def _of_character(character):
  code = ord(character)
  if 33 <= code < 127:
    return code - 31
  found = code + 177 if code <= 32 else 210 if code == 127 else _OTHERS.get(character, -1)
  if 128 <= code < 256:
    found = _UPPER[code - 128]
  return found if found >= 0 else END_OF_TEXT
