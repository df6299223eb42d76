"""Tokens and vocabularies as in the paper's code."""

import numpy as np
import pytest

from lra_spt.data import tokenizers
from tests import token_ids


def test_listops_tokens_keep_their_brackets():
  text = '( ( ( ( [MAX 4 ) ( ( ( [SM 2 ) 9 ) ] ) ) 0 ) ] )'
  assert tokenizers.tokenize_listops(text) == ['[MAX', '4', '[SM', '2', '9', 'X', '0', 'X']


def test_vocabulary_is_ordered_by_frequency_then_alphabet():
  counts = {'b': 2, 'a': 2, 'z': 9, 'rare': 1}
  frequent = tokenizers.build_vocabulary(counts, minimum=2)
  assert frequent == ('<mask>', '<pad>', '<unk>', '<eos>', 'z', 'a', 'b')
  assert tokenizers.build_vocabulary(counts)[tokenizers.MASK] == '<mask>'
  assert len(tokenizers.build_vocabulary(dict.fromkeys(tokenizers.LISTOPS_TOKENS, 1))) == 19


def test_character_table_has_the_ids_of_the_vocabulary():
  text = 'caf\u00e9 \U0001f600\x96<br />'
  vocabulary = tokenizers.build_vocabulary(dict.fromkeys('caf \u00e9\U0001f600<', 1))
  ids = tokenizers.character_table(vocabulary)[tokenizers.code_points(text)]
  assert ids.dtype == np.uint8
  assert ids.tolist() == token_ids.encode(text, vocabulary, 100).tolist()[:-1]
  assert tokenizers.code_points('').shape == (0,)
  with pytest.raises(ValueError, match='vocabulary of 257 entries does not fit'):
    tokenizers.character_table([chr(i) for i in range(1000, 1257)])
