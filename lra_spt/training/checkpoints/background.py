"""Work in threads while training continues."""

import functools
import threading

import jax
import jax.numpy as jnp


class Background:
  """Runs calls in threads, one after the other. A call that raises is the last one that runs: `check`, `wait`
  and the next `start` raise it."""

  def __init__(self):
    self._last, self._group, self._error = None, None, None

  def start(self, group: int, call) -> None:
    """Runs `call()` after those before it, and waits first for those of another group: what calls hold
    is held for one group only."""
    if group != self._group:
      self.wait()
    self.check()
    before, self._group = self._last, group

    def run():
      if before is not None:
        before.join()
      if self._error is None:
        try:
          call()
        except BaseException as error:
          self._error = error

    # A daemon: who ends the process at once shall not wait for a disk that hangs.
    self._last = threading.Thread(target=run, name='background', daemon=True)
    self._last.start()

  def check(self) -> None:
    """Raises what a call has raised."""
    if self._error is not None:
      raise self._error

  def wait(self) -> None:
    """Returns when all calls have ended; raises what one has raised."""
    if self._last is not None:
      self._last.join()
    self.check()


def copied(tree):
  """The same arrays where they are, in memory of their own, which outlives a donation of the first."""
  leaves, treedef = jax.tree.flatten(tree)
  shardings = tuple(leaf.sharding for leaf in leaves)
  return jax.tree.unflatten(treedef, _copies(shardings)(leaves))


@functools.lru_cache(maxsize=8)
def _copies(shardings):
  return jax.jit(lambda leaves: [jnp.copy(leaf) for leaf in leaves], out_shardings=list(shardings))
