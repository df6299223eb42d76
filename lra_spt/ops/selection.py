"""Which implementation runs a call that names none: the one verified on this machine for such calls
(`lra_spt.training.autotune`), else the platform's first choice.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
from collections.abc import Hashable, Iterator, Mapping

_LONGEST = 200  # letters of an option that `Call.text` writes out


@dataclasses.dataclass(frozen=True)
class Call:
  """A call of an operation with several implementations, as they are compiled for it. Calls that differ in
  their batch alone are equal, and share what is proven of one.

  sizes: of every array its name, shape without the batch, dtype, and whether the batch is its first axis;
  options: what else tells calls apart.
  candidates: implementations that can run it, the platform's first one first; plain: the one of them that is
  no kernel.
  """

  operation: str
  sizes: tuple[tuple[str, tuple[int, ...], str, bool], ...]
  options: tuple[tuple[str, Hashable], ...]
  batch: int = dataclasses.field(compare=False)
  candidates: tuple[str, ...] = dataclasses.field(compare=False)
  plain: str = dataclasses.field(compare=False)

  @property
  def text(self) -> str:
    """The same for equal calls, in any process."""
    arrays = [f'{name} {" x ".join(map(str, shape))} {dtype}' for name, shape, dtype, _ in self.sizes]
    return ', '.join([f'{self.operation}: {arrays[0]}', *arrays[1:], *map(_written, self.options)])


def _written(option) -> str:
  text = f'{option[0]}={option[1]}'
  return text if len(text) <= _LONGEST else f'{option[0]}={hashlib.sha256(text.encode()).hexdigest()[:16]}'


_proven: dict[Call, str] = {}
_recorders: list[dict[Call, None]] = []
_plainly = contextvars.ContextVar('plainly', default=False)


def select(call: Call) -> str:
  """The implementation for a call, now being traced."""
  for recorder in _recorders:
    recorder.setdefault(call)
  return call.plain if _plainly.get() else chosen(call)


def named(operation: str, name: str) -> None:
  """Notes a call, now being traced, that names its implementation; of all such calls one `Call`."""
  call = Call(operation, (), (('named', name),), 0, (name,), name)
  for recorder in _recorders:
    recorder.setdefault(call)


def chosen(call: Call) -> str:
  """What runs such a call outside of `plainly`."""
  name = _proven.get(call)
  return name if name in call.candidates else call.candidates[0]


@contextlib.contextmanager
def recording() -> Iterator[dict[Call, None]]:
  """Within, calls are noted when they are traced: the keys of what it yields. Those that name their
  implementation have it as their only candidate."""
  found = {}
  _recorders.append(found)
  try:
    yield found
  finally:
    _recorders.remove(found)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
  """Within, calls that name no implementation are traced without kernels."""
  before = _plainly.set(True)
  try:
    yield
  finally:
    _plainly.reset(before)


def install(proven: Mapping[Call, str]) -> None:
  """Has such calls traced from now on run what was proven; what was traced before stays as it is."""
  _proven.update(proven)


def forget() -> None:
  """Undoes all `install`."""
  _proven.clear()
