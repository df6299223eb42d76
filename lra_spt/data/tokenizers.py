"""Text to token ids.

Special ids come first; `<mask>` is 0 because denoising replaces tokens by id 0. The rest of a vocabulary is
ordered by descending frequency in the training split, then alphabetically, as in the paper's code.
"""

import sys
from collections.abc import Mapping, Sequence

import numpy as np

SPECIAL_TOKENS = ('<mask>', '<pad>', '<unk>', '<eos>')
MASK, PAD, UNKNOWN, END = range(4)

# Operators keep their opening bracket; X is the closing one.
LISTOPS_TOKENS = ('[MIN', '[MAX', '[MED', '[SM', 'X', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9')


def tokenize_listops(text: str) -> list[str]:
  """Tokens of a ListOps expression: parentheses are dropped, `]` becomes X, `[MIN` stays one token."""
  return text.replace('(', ' ').replace(')', ' ').replace(']', 'X').split()


def build_vocabulary(counts: Mapping[str, int], minimum: int = 1) -> tuple[str, ...]:
  """Special tokens, then the counted ones by descending frequency and, among equals, alphabetically.

  Args:
    counts: occurrences of each token in the training split.
    minimum: rarer tokens are left out and become `<unk>`.
  """
  frequent = sorted(
    (token for token, count in counts.items() if count >= minimum), key=lambda t: (-counts[t], t)
  )
  return SPECIAL_TOKENS + tuple(frequent)


def code_points(text: str) -> np.ndarray:
  """Unicode code points of the characters of a text, int64 [number of characters]."""
  return np.frombuffer(text.encode('utf-32-le'), '<u4').astype(np.int64)


def character_table(vocabulary: Sequence[str]) -> np.ndarray:
  """Ids by code point, for a vocabulary of at most 256 special tokens and characters.

  `character_table(vocabulary)[code_points(text)]` are the ids of the characters of the text.

  Returns:
    uint8 [1,114,112], `UNKNOWN` where the vocabulary has no such character.

  Raises:
    ValueError: the vocabulary has more than 256 entries.
  """
  if len(vocabulary) > 256:
    raise ValueError(f'A vocabulary of {len(vocabulary)} entries does not fit into bytes; keep at most 256.')
  table = np.full(sys.maxunicode + 1, UNKNOWN, np.uint8)
  for i, token in enumerate(vocabulary):
    if token not in SPECIAL_TOKENS:
      table[ord(token)] = i
  return table
