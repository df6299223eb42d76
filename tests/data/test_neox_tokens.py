"""Tokens of GPT-NeoX: ids as its tokenizer file has them."""

import numpy as np

from lra_spt.data import tokenizers
from lra_spt.data.neox_tokens import OPERATORS, token_ids
from lra_spt.data.parts import ByteTokens


def test_ids_are_those_of_the_tokenizer(golden):
  published = golden('neox_token_ids')
  bytes_256 = token_ids([chr(code) for code in range(256)])
  np.testing.assert_array_equal(bytes_256, np.maximum(published['latin1_0_255'], 0))
  np.testing.assert_array_equal(token_ids(list('0123456789')), published['listops_digits'])
  np.testing.assert_array_equal(token_ids(['X']), published['listops_X'])
  np.testing.assert_array_equal(token_ids(ByteTokens(1).names)[:256], published['decimal_0_255'])


def test_a_byte_is_its_number_in_decimal():
  """Digits are the characters that they are; no two bytes share a token, and `<mask>` has one of its own."""
  ids = token_ids(ByteTokens(1).names)
  assert ids[[0, 9, 10, 99, 100, 255, 256]].tolist() == [17, 26, 740, 1525, 2313, 10637, 50277]
  assert len(set(ids.tolist())) == len(ids) == ByteTokens(1).vocabulary == 257


def test_special_tokens_and_operators():
  """`<mask>` has a row that no token has there; operators are the letters that the published code takes."""
  assert token_ids(tokenizers.SPECIAL_TOKENS).tolist() == [50277, 1, 0, 0]
  ids = token_ids(tokenizers.LISTOPS_TOKENS)
  assert len(set(ids.tolist())) == len(tokenizers.LISTOPS_TOKENS)
  assert dict(zip(OPERATORS, token_ids(list(OPERATORS)), strict=True)) == dict(
    zip(OPERATORS, (34, 35, 36, 37), strict=True)
  )
  assert token_ids(['a', ' ', '\n', '\u00e9', '\u2019']).tolist() == [66, 209, 187, 860, 457]


def test_a_character_of_several_tokens_is_unknown():
  assert token_ids(['\u00c0', '\u4e00', '<unk>']).tolist() == [0, 0, 0]
