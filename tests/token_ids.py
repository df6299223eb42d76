"""Converts single tokens for tests; the package converts whole texts at once."""

from collections.abc import Iterable, Sequence

import numpy as np

from lra_spt.data import tokenizers


def encode(tokens: Iterable[str], vocabulary: Sequence[str], length: int) -> np.ndarray:
  """Ids of the first length - 1 tokens and `<eos>`, uint8, for a vocabulary of at most 256."""
  ids = {token: i for i, token in enumerate(vocabulary)}
  body = [ids.get(token, tokenizers.UNKNOWN) for token in tokens][: length - 1]
  return np.asarray([*body, tokenizers.END], np.uint8)


def listops_text(codes) -> str:
  """The codes of a tree as a token string, with the brackets of the model's vocabulary (`[MIN 3 4 X`)."""
  return ' '.join(tokenizers.LISTOPS_TOKENS[code] for code in codes)
