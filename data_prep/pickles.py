"""Pickles of data sets, read without running or building anything that they choose.

NumPy rebuilds an array from a pickle with code that trusts it: a dtype of objects with raw bytes turns these
bytes into pointers. Names in such a file are therefore resolved to stand-ins that support only arrays of
chosen numbers. Memo numbers, for which the unpickler would reserve memory, are checked beforehand.
"""

import math
import pickle
import pickletools
import reprlib
from typing import BinaryIO

import numpy as np

_PUT, _GET = ('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE'), ('GET', 'BINGET', 'LONG_BINGET')
_NEVER = ('DUP', 'POP', 'POP_MARK')  # no pickler writes it here, and a tuple could be on top after it


class _Dtype:
  """A stand-in for numpy.dtype. It takes only the order of bytes from the pickled state."""

  order = '|'

  def __init__(self, name: str):
    self.name = name

  def __setstate__(self, state):
    order = state[1].decode() if isinstance(state[1], bytes) else state[1]
    if order not in ('<', '>', '|', '='):
      raise pickle.UnpicklingError(f'it holds numbers in the order {reprlib.repr(order)}')
    self.order = order


class Array:
  """A stand-in for numpy.ndarray; `array` has its values after its state was set."""

  array = None

  def __setstate__(self, state):
    _, shape, dtype, by_column, content = state
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
      raise pickle.UnpicklingError('it holds an array of something other than bytes')
    read = np.dtype(dtype.order + dtype.name)
    sizes = type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)
    if not sizes or math.prod(shape) * read.itemsize != len(content):
      raise pickle.UnpicklingError(
        f'it holds an array of shape {reprlib.repr(shape)} in {len(content):,} bytes'
      )
    self.array = np.frombuffer(content, read).reshape(shape, order='F' if by_column else 'C')


def _reconstruct(*_):
  return Array()


def _encode(text, encoding):
  """The form in which Python 3 writes bytes in protocol 2."""
  if encoding not in ('latin1', b'latin1'):
    raise pickle.UnpicklingError(f'it holds text in {reprlib.repr(encoding)}')
  return text.encode('latin1')


class _Unpickler(pickle.Unpickler):
  """Unpickles plain containers, numbers, strings and arrays of the given numbers."""

  def __init__(self, file, dtypes, kind, files):
    super().__init__(file, encoding='bytes')
    self._dtypes, self._kind, self._files = dtypes, kind, files

  def find_class(self, module, name):
    known = {  # NumPy's functions have had two homes
      'numpy.core.multiarray._reconstruct': _reconstruct,
      'numpy._core.multiarray._reconstruct': _reconstruct,
      'numpy.ndarray': Array,
      'numpy.dtype': self._dtype,
      '_codecs.encode': _encode,
    }
    asked = f'{module}.{name}'[:80]
    if asked not in known:
      raise pickle.UnpicklingError(f'it asks for {asked}, which no {self._files} file needs')
    return known[asked]

  def _dtype(self, name, *_):
    text = name.decode('latin1') if isinstance(name, bytes) else name
    if text not in self._dtypes:
      raise pickle.UnpicklingError(f'it holds an array of {reprlib.repr(name)} instead of {self._kind}')
    return _Dtype(text)


def _check_cost(file, size, files):
  before, memo, tuples = '', set(), set()
  for opcode, argument, _ in pickletools.genops(file):
    name = opcode.name
    if name in _PUT:
      number = len(memo) if argument is None else argument
      memo.add(number)
      if number > size:
        raise pickle.UnpicklingError(f'it numbers its {number:,}th object in {size:,} bytes')
      if before.startswith('TUPLE'):
        tuples.add(number)
    if name in _NEVER or (name in _GET and argument in tuples):
      raise pickle.UnpicklingError(f'it holds a tuple twice, or moves objects as no {files} file does')
    if name not in (*_PUT, 'FRAME', 'PROTO'):  # these leave the top of the stack unchanged
      before = name


def load(file: BinaryIO, size: int, *, dtypes: tuple[str, ...], kind: str, files: str):
  """The object in a pickle: containers, numbers, strings, and `Array`s. Text of Python 2 becomes bytes.

  Args:
    file: open at its beginning; it is read twice.
    size: its bytes.
    dtypes: names of the numbers that arrays may hold, as in pickles: 'u1', 'f8'.
    kind: these numbers in words; files: the name of such files; for messages.

  Raises:
    ValueError: it holds something else or is damaged; its text names the reason.
  """
  try:
    _check_cost(file, size, files)
    file.seek(0)
    return _Unpickler(file, dtypes, kind, files).load()
  except Exception as error:  # a damaged pickle can raise almost any error
    raise ValueError(' '.join(str(error).split())[:200] or type(error).__name__) from None
