"""Our tokens as those of GPT-NeoX (Black et al. 2022), whose vocabulary Pythia shares; from its tokenizer.

Each of our tokens corresponds to one of theirs, so that their embedding, with rows in our order, does the
same.
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
# Bytes of several digits in decimal, 10 to 255: each is one token.
_NUMBERS = """
  740 883 805 1012 1047 1010 1036 1166 1093 746 938 1797 1423 1508 1348 1099 1731 1630 1619 1717 1229 2405
  1237 1610 1706 1671 1812 1787 1839 1867 1449 3156 2945 3079 2031 1857 2950 2504 2385 2537 1235 3712 3583
  3357 3439 2417 3208 3011 3680 3046 1549 3832 3763 3571 1540 2082 2526 2251 2358 2090 1967 3677 3547 3655
  3566 1976 3121 2357 3141 2787 1438 3593 3507 3245 2759 2227 2691 2597 2055 2511 2270 4739 4529 4590 3953
  2222 4196 4148 4185 1525 2313 6903 11335 12172 11238 10655 12971 12224 12347 12852 7749 10768 11124 14322
  13391 12730 13210 12231 14711 12115 8193 15144 14351 10683 13397 9312 13381 11946 8196 13482 11246 17015
  14783 14380 15468 13743 15220 15497 15148 15270 12434 18962 17364 16150 14231 11838 16607 14555 16989
  16717 8970 18795 17472 16271 17161 15054 16198 15882 18663 17220 9913 20664 19603 18121 18467 15429 17962
  18146 13851 17809 15046 19816 20333 21151 18804 14840 17184 15907 20070 17864 11395 20895 20700 21092
  19105 17786 20270 17306 17599 18359 16129 22179 14403 19631 19332 17726 19196 18493 16903 3031 1518 1252
  18161 17490 15781 16763 18040 18202 17391 14009 16899 17605 17223 21197 21866 21351 17271 19443 22981
  24558 14256 20735 18895 20360 17537 14832 21345 20785 20694 17107 17569 18390 19136 22187 20210 19568
  21358 20991 21378 20487 14028 24552 22232 23525 21149 19490 23260 18392 20520 21361 9519 21451 20438 22067
  15161 10637
""".split()
_NUMBERS = {str(byte): int(number) for byte, number in enumerate(_NUMBERS, 10)}
_OTHERS = {'\u2013': 1253, '\u2019': 457, '\u2026': 2866}


def token_ids(vocabulary: Sequence[str]) -> np.ndarray:
  """int32 [len(vocabulary)]: their id of each of our tokens; that of the end of a text (as `<unk>` has) for a
  character that is several tokens there. ValueError where one is no character, operator or byte."""
  names = [OPERATORS.get(token, token) for token in vocabulary]
  return np.array([SPECIAL[name] if name in SPECIAL else _of_text(name) for name in names], np.int32)


def _of_text(text):
  """Of a byte in decimal, or of a character."""
  if text in _NUMBERS:
    return _NUMBERS[text]
  if len(text) != 1:
    raise ValueError(f'the token {text!r:.80} is not a character, operator or byte')
  code = ord(text)
  if 33 <= code < 127:
    return code - 31
  found = code + 177 if code <= 32 else 210 if code == 127 else _OTHERS.get(text, -1)
  if 128 <= code < 256:
    found = _UPPER[code - 128]
  return found if found >= 0 else END_OF_TEXT
