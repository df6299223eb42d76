"""One HTML file without external resources, from a template that extends `base.html`."""

import base64
import hashlib
import io
import pathlib

import jinja2

from lra_spt import files
from lra_spt.report.pages import colours


def write_page(path, template: str, *, script: str = '', **values) -> pathlib.Path:
  """Renders and writes a page, which replaces `path` at once or not at all.

  Args:
    path: of the HTML file; its folder must exist.
    template: file name in `templates`; it extends 'base.html', which asks for `title`.
    script: file name of a script beside the templates; the page's policy allows this one, by its hash.
    values: what the template shows; text is escaped, what it marks as safe is not.

  Raises:
    FileAccessError: the file cannot be written.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('lra_spt.report.pages'),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters['unbroken'] = unbroken
  html = environment.get_template(template).render(
    themes={'light': colours.LIGHT, 'dark': colours.DARK, 'print': colours.PRINT},
    script=script and _script(environment.loader.get_source(environment, script)[0]),
    **values,
  )
  files.write_text(path, html)
  return files.place(path)


def _script(text):
  digest = hashlib.sha256(text.encode()).digest()
  return {'text': text, 'hash': f'sha256-{base64.b64encode(digest).decode()}'}


def unbroken(text: str) -> str:
  """'12 %' with a space that does not break."""
  return text.replace(' %', '\u00a0%')


def image_uri(pixels) -> str:
  """A PNG inside an address, for <img src>.

  Args:
    pixels: uint8 [height, width] (grey levels), [height, width, 3] or [height, width, 4] (RGBA).
  """
  from PIL import Image

  file = io.BytesIO()
  Image.fromarray(pixels).save(file, 'PNG')
  return f'data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}'
