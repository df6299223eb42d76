"""The Python version of CIFAR-10: pickles, read without running or building anything that they choose.

NumPy rebuilds an array from a pickle with code that trusts it: a dtype of objects with raw bytes turns these
bytes into pointers. Names in such a file are therefore resolved to stand-ins that support only arrays of
bytes. Memo numbers, for which the unpickler would reserve memory, are checked beforehand.
"""

import io
import math
import pickle
import pickletools
import reprlib

import numpy as np

_PUT, _GET = ('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE'), ('GET', 'BINGET', 'LONG_BINGET')
_NEVER = ('DUP', 'POP', 'POP_MARK')  # no pickler writes it here, and a tuple could be on top after it


class _Dtype:
  """A stand-in for numpy.dtype that supports only bytes."""

  def __init__(self, name, *_):
    if name not in ('u1', b'u1', 'uint8', b'uint8'):
      raise pickle.UnpicklingError(f'it holds an array of {reprlib.repr(name)} instead of bytes')

  def __setstate__(self, state):
    pass  # the byte order, which bytes do not have


class _Array:
  """A stand-in for numpy.ndarray; `array` is uint8 after its state was set."""

  array = None

  def __setstate__(self, state):
    _, shape, dtype, by_column, content = state
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
      raise pickle.UnpicklingError('it holds an array of something other than bytes')
    if any(type(size) is not int or size < 0 for size in shape) or math.prod(shape) != len(content):
      raise pickle.UnpicklingError(
        f'it holds an array of shape {reprlib.repr(shape)} in {len(content):,} bytes'
      )
    self.array = np.frombuffer(content, np.uint8).reshape(shape, order='F' if by_column else 'C')


def _reconstruct(*_):
  return _Array()


def _encode(text, encoding):
  """The form in which Python 3 writes bytes in protocol 2."""
  if encoding not in ('latin1', b'latin1'):
    raise pickle.UnpicklingError(f'it holds text in {reprlib.repr(encoding)}')
  return text.encode('latin1')


class _Unpickler(pickle.Unpickler):
  """Unpickles plain containers, numbers, strings and arrays of bytes."""

  # NumPy's function has had two homes.
  _known = {
    ('numpy.core.multiarray', '_reconstruct'): _reconstruct,
    ('numpy._core.multiarray', '_reconstruct'): _reconstruct,
    ('numpy', 'ndarray'): _Array,
    ('numpy', 'dtype'): _Dtype,
    ('_codecs', 'encode'): _encode,
  }

  def find_class(self, module, name):
    try:
      return self._known[module, name]
    except KeyError:
      asked = f'{module}.{name}'[:80]
      raise pickle.UnpicklingError(f'it asks for {asked}, which no CIFAR-10 file needs') from None


def _check_cost(content):
  before, memo, tuples = '', set(), set()
  for opcode, argument, _ in pickletools.genops(content):
    name = opcode.name
    if name in _PUT:
      number = len(memo) if argument is None else argument
      memo.add(number)
      if number > len(content):
        raise pickle.UnpicklingError(f'it numbers its {number:,}th object in {len(content):,} bytes')
      if before.startswith('TUPLE'):
        tuples.add(number)
    if name in _NEVER or (name in _GET and argument in tuples):
      raise pickle.UnpicklingError('it holds a tuple twice, or moves objects as no CIFAR-10 file does')
    if name not in (*_PUT, 'FRAME', 'PROTO'):  # these leave the top of the stack unchanged
      before = name


def read(content: bytes) -> tuple[np.ndarray, list[int]]:
  """The values of a batch under b'data', an array of bytes, and under b'labels'.

  Raises:
    ValueError: the file holds no batch; its text names the reason.
  """
  try:
    _check_cost(content)
    batch = _Unpickler(io.BytesIO(content), encoding='bytes').load()
    batch = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
    data, labels = batch[b'data'], batch[b'labels']
  except Exception as error:  # a damaged pickle can raise almost any error
    raise ValueError(' '.join(str(error).split())[:200] or type(error).__name__) from None
  if not isinstance(data, _Array) or data.array is None:
    raise ValueError("its b'data' is not an array of bytes")
  if type(labels) is not list or any(type(label) is not int for label in labels):
    raise ValueError("its b'labels' are not a list of whole numbers")
  return data.array, labels
