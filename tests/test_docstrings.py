"""Docstrings agree with the code."""

import ast
import re


def test_docstrings_name_the_errors_that_are_raised(source_modules):
  """A docstring with 'Raises' names every UserError, or subclass of it, that its function raises."""
  trees = {path: ast.parse(path.read_text()) for path in source_modules.values()}
  classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
  for_users, before = {'UserError'}, 0
  while len(for_users) > before:
    before = len(for_users)
    for_users |= {each.name for each in classes if for_users & {ast.unparse(base) for base in each.bases}}
  seen, unnamed = 0, []
  for path, tree in trees.items():
    for node in ast.walk(tree):
      documented = _what_is_raised(node)
      for name in _raised(node) & for_users if documented else ():
        seen += 1
        if name not in documented:
          unnamed.append(f'{path}:{node.lineno} {node.name} raises {name}')
  assert not unnamed, '\n'.join(unnamed)
  assert seen > 80


def _what_is_raised(node):
  """The words of a docstring from 'Raises' on."""
  if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
    return ()
  return re.findall(r'\w+', (ast.get_docstring(node) or '').partition('Raises')[2])


def _raised(node):
  """Names of the errors that the statements of a function raise, or those of the __init__ of a class."""
  if isinstance(node, ast.ClassDef):
    inits = [each for each in node.body if getattr(each, 'name', '') in ('__init__', '__post_init__')]
    return set().union(*map(_raised, inits))
  raised = [each.exc for each in ast.walk(node) if isinstance(each, ast.Raise)]
  return {ast.unparse(each.func) for each in raised if isinstance(each, ast.Call)}


def test_nothing_needs_docstrings_or_assertions_to_run(source_modules):
  """`python -O` drops assertions and `python -OO` docstrings; argparse alone takes None for one."""
  dropped = []
  for module, path in source_modules.items():
    for node in ast.walk(ast.parse(path.read_text())):
      docstring = isinstance(node, ast.Attribute | ast.Name) and '__doc__' in ast.unparse(node).split('.')
      if isinstance(node, ast.Assert) or (docstring and not module.startswith('benchmarks')):
        dropped.append(f'{path}:{node.lineno}')
  assert not dropped
