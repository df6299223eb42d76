"""Runs saves in threads while training continues."""

import functools
import threading

import jax
import jax.numpy as jnp

from lra_spt.distributed import settings


class Background:
  """Runs calls in threads, one after the other. No call runs after one that raises; `check`, `wait` and the
  next `start` raise its error."""

  def __init__(self):
    self._last, self._group, self._error = None, None, None

  def start(self, group: int, call) -> None:
    """Runs `call()` after the earlier calls. It first waits for calls of another group, so that only the
    copies of one group take memory."""
    if group != self._group:
      self.wait()
    self.check()
    before, self._group = self._last, group

    def run():
      if before is not None:
        before.join()
      if self._error is None:
        try:
          with settings.fixed():
            call()
        except BaseException as error:
          self._error = error

    # A daemon, so that the process can end although a disk hangs.
    self._last = threading.Thread(target=run, name='background', daemon=True)
    self._last.start()

  def check(self) -> None:
    """Raises the error of a call that failed."""
    if self._error is not None:
      raise self._error

  def wait(self) -> None:
    """Returns when all calls have ended; raises the error of a call that failed."""
    if self._last is not None:
      self._last.join()
    self.check()


def copied(tree):
  """Copies arrays on their devices, so that the originals can be donated."""
  leaves, treedef = jax.tree.flatten(tree)
  shardings = tuple(leaf.sharding for leaf in leaves)
  return jax.tree.unflatten(treedef, _copies(shardings)(leaves))


@functools.lru_cache(maxsize=8)
def _copies(shardings):
  return jax.jit(lambda leaves: [jnp.copy(leaf) for leaf in leaves], out_shardings=list(shardings))
