"""Selection of the implementation for a call that names none: the one that `lra_spt.training.autotune` has
verified on this machine for such calls, else the platform's first choice.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
from collections.abc import Hashable, Iterator, Mapping

_LONGEST = 200  # characters of an option that `Call.text` writes out in full


@dataclasses.dataclass(frozen=True)
class Call:
  """A call of an operation that has several implementations.

  Calls that differ only in their batch are equal, and share one result of autotune.

  sizes: for every array its name, its shape without the batch, its dtype, and True if the batch is its first
    axis.
  options: names and values of the other arguments.
  candidates: the implementations that can run the call, the platform's first choice first.
  plain: the candidate that is no kernel.
  """

  operation: str
  sizes: tuple[tuple[str, tuple[int, ...], str, bool], ...]
  options: tuple[tuple[str, Hashable], ...]
  batch: int = dataclasses.field(compare=False)
  candidates: tuple[str, ...] = dataclasses.field(compare=False)
  plain: str = dataclasses.field(compare=False)

  @property
  def text(self) -> str:
    """A text that is the same for equal calls, in any process."""
    arrays = [f'{name} {" x ".join(map(str, shape))} {dtype}' for name, shape, dtype, _ in self.sizes]
    return ', '.join([f'{self.operation}: {arrays[0]}', *arrays[1:], *map(_written, self.options)])


def _written(option) -> str:
  text = f'{option[0]}={option[1]}'
  return text if len(text) <= _LONGEST else f'{option[0]}={hashlib.sha256(text.encode()).hexdigest()[:16]}'


_proven: dict[Call, str] = {}
_recorders: list[dict[Call, None]] = []
_plainly = contextvars.ContextVar('plainly', default=False)


def select(call: Call) -> str:
  """Returns the implementation for a call that is being traced."""
  for recorder in _recorders:
    recorder.setdefault(call)
  return call.plain if _plainly.get() else chosen(call)


def named(operation: str, name: str) -> None:
  """Records that a call that is being traced names its implementation."""
  call = Call(operation, (), (('named', name),), 0, (name,), name)
  for recorder in _recorders:
    recorder.setdefault(call)


def chosen(call: Call) -> str:
  """Returns the implementation for such a call outside of `plainly`."""
  name = _proven.get(call)
  return name if name in call.candidates else call.candidates[0]


@contextlib.contextmanager
def recording() -> Iterator[dict[Call, None]]:
  """Records the calls that are traced within it, as the keys of the yielded dict. A call that names its
  implementation has it as its only candidate."""
  calls = {}
  _recorders.append(calls)
  try:
    yield calls
  finally:
    _recorders.remove(calls)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
  """Traces calls within it without kernels, except those that name their implementation."""
  before = _plainly.set(True)
  try:
    yield
  finally:
    _plainly.reset(before)


def install(proven: Mapping[Call, str]) -> None:
  """Sets the implementations of calls that are traced from now on."""
  _proven.update(proven)


def forget() -> None:
  """Undoes all `install`."""
  _proven.clear()
