"""Tokens and vocabularies as in the paper's code."""

import numpy as np
import pytest

from lra_spt.data import tokenizers


def test_listops_tokens_keep_their_brackets():
  text = '( ( ( ( [MAX 4 ) ( ( ( [SM 2 ) 9 ) ] ) ) 0 ) ] )'
  assert tokenizers.tokenize_listops(text) == ['[MAX', '4', '[SM', '2', '9', 'X', '0', 'X']


def test_vocabulary_is_ordered_by_frequency_then_alphabet():
  counts = {'b': 2, 'a': 2, 'z': 9, 'rare': 1}
  assert tokenizers.build_vocabulary(counts, minimum=2) == (
    '<mask>',
    '<pad>',
    '<unk>',
    '<eos>',
    'z',
    'a',
    'b',
  )
  assert tokenizers.build_vocabulary(counts)[tokenizers.MASK] == '<mask>'
  assert len(tokenizers.build_vocabulary(dict.fromkeys(tokenizers.LISTOPS_TOKENS, 1))) == 19


def test_encode_cuts_and_ends():
  vocabulary = tokenizers.build_vocabulary({'a': 2, 'b': 1})
  ids = tokenizers.encode('abcab', vocabulary, length=5)
  assert ids.tolist() == [4, 5, tokenizers.UNKNOWN, 4, tokenizers.END]
  assert ids.dtype == np.uint8
  assert tokenizers.encode('a', vocabulary, length=5).tolist() == [4, tokenizers.END]
  assert tokenizers.encode('a', [str(i) for i in range(300)], length=5).dtype == np.int32


def test_character_table_agrees_with_encode():
  text = 'caf\u00e9 \U0001f600\x96<br />'
  vocabulary = tokenizers.build_vocabulary(dict.fromkeys('caf \u00e9\U0001f600<', 1))
  ids = tokenizers.character_table(vocabulary)[tokenizers.code_points(text)]
  assert ids.dtype == np.uint8
  assert ids.tolist() == tokenizers.encode(text, vocabulary, 100).tolist()[:-1]
  assert tokenizers.code_points('').shape == (0,)
  with pytest.raises(ValueError, match='vocabulary of 257 entries does not fit'):
    tokenizers.character_table([chr(i) for i in range(1000, 1257)])
