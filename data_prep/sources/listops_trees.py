"""The compiled part of ListOps: grows trees, and evaluates those of files.

Everything is in one file because Numba's cache notices a change only in the file of the called function.
Codes of tokens are positions in `tokenizers.LISTOPS_TOKENS`: four operators, the closing bracket, ten digits.
"""

import numpy as np

from data_prep.compiled import jit as _jit

CLOSE, DIGIT = 4, 5
WRONG = (
  'goes on after its expression has ended',
  'has operators within more operators than any official expression',
  'closes a bracket that was not opened',
  'has an operator of fewer than two arguments',
  'has an operator of more arguments than any official one',
  'ends before its expression does',
)


@_jit
def _apply(operator, arguments):
  """The value of an operator (a code) for the values of its arguments, int64 [n]."""
  if operator == 0:
    return arguments.min()
  if operator == 1:
    return arguments.max()
  if operator == 2:
    ordered, middle = np.sort(arguments), len(arguments) // 2
    # int(median) of non-negative digits: the mean of the two middle ones, rounded down.
    return ordered[middle] if len(arguments) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
  return arguments.sum() % 10


@_jit
def evaluate(codes, max_depth, max_args):
  """The value of a tree; for a wrong one, -1 - the position of its error in WRONG."""
  operators = np.empty(max_depth, np.int64)
  filled = np.empty(max_depth, np.int64)
  values = np.empty((max_depth, max_args), np.int64)
  depth = 0  # number of open operators
  value = -1  # value of the whole tree once it is closed
  for code in codes:
    if value >= 0:
      return -1
    if code < CLOSE:
      if depth + 1 == max_depth:
        return -2
      operators[depth], filled[depth] = code, 0
      depth += 1
      continue
    if code == CLOSE:
      if depth == 0:
        return -3
      depth -= 1
      if filled[depth] < 2:
        return -4
      result = _apply(operators[depth], values[depth, : filled[depth]])
    else:
      result = np.int64(code) - DIGIT
    if depth == 0:
      value = result
    elif filled[depth - 1] == max_args:
      return -5
    else:
      values[depth - 1, filled[depth - 1]] = result
      filled[depth - 1] += 1
  return value if value >= 0 else -6


@_jit
def _draw(state):
  """splitmix64: 64 random bits; `state` is uint64 [1]."""
  state[0] += np.uint64(0x9E3779B97F4A7C15)
  z = state[0]
  z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return z ^ (z >> np.uint64(31))


@_jit
def _below(state, n):
  """A uniform integer below n."""
  return np.int64(((_draw(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@_jit
def _grow(state, max_depth, max_args, max_length, tokens):
  """Grows one tree into `tokens`; returns (length, value), or (0, 0) as soon as it is too long."""
  start = np.empty(max_depth, np.int64)
  wanted = np.empty(max_depth, np.int64)
  filled = np.empty(max_depth, np.int64)
  values = np.empty((max_depth, max_args), np.int64)
  depth = position = 0  # number of open operators; next free token
  while True:
    if position >= max_length:
      return 0, 0
    if depth + 1 < max_depth and _draw(state) >> np.uint64(62) == 0:
      start[depth], filled[depth], wanted[depth] = position, 0, 2 + _below(state, max_args - 1)
      depth += 1
      position += 1
      continue
    value = _below(state, 10)
    tokens[position] = DIGIT + value
    position += 1
    while depth > 0:
      top = depth - 1
      values[top, filled[top]] = value
      filled[top] += 1
      if filled[top] < wanted[top]:
        break
      if position >= max_length:
        return 0, 0
      operator = _below(state, 4)
      tokens[start[top]] = operator
      tokens[position] = CLOSE
      position += 1
      value = _apply(operator, values[top, : wanted[top]])
      depth -= 1
    if depth == 0:
      return position, value


@_jit
def grow_many(seed, trials, max_depth, max_args, min_length, max_length, tokens, lengths, labels):
  """Fills rows with trees of the right size; returns their number after at most `trials`."""
  state = np.array([seed], np.uint64)
  count = 0
  for _ in range(trials):
    length, value = _grow(state, max_depth, max_args, max_length, tokens[count])
    if min_length < length < max_length:
      lengths[count], labels[count] = length, value
      count += 1
      if count == len(tokens):
        break
  return count
