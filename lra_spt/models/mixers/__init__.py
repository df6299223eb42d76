"""The mixers of the package, one file each: all modules of this folder are imported and register their
mixer."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
  importlib.import_module(f'{__name__}.{_module.name}')
