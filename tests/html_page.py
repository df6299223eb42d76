"""A page as the tests of pages see it."""

import html.parser

VOID = {'meta', 'link', 'br', 'hr', 'img', 'input'}


class Page(html.parser.HTMLParser):
  """Checks that tags nest, and keeps text, tags and attributes."""

  def __init__(self, content):
    super().__init__()
    self.stack, self.tags, self.attributes, self.text = [], [], [], []
    self.feed(content)
    assert not self.stack, f'unclosed: {self.stack}'

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += [(tag, *pair) for pair in attrs]
    if tag not in VOID:
      self.stack.append(tag)

  def handle_endtag(self, tag):
    assert tag in VOID or self.stack.pop() == tag

  def handle_data(self, data):
    if not self.stack or self.stack[-1] not in ('style', 'script'):
      self.text.append(data)

  @property
  def words(self):
    return ' '.join(' '.join(self.text).split()).replace('\u00a0', ' ')
