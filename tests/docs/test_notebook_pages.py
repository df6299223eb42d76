"""Notebooks as pages of the site: code, outputs and pictures; the navigation has them all."""

import json

from docs import notebook_pages


def test_a_page_has_code_outputs_and_pictures(monkeypatch, tmp_path):
  outputs = [
    {'output_type': 'stream', 'name': 'stdout', 'text': ['\x1b[31mred\x1b[0m ``` <b>\n', 'two\n']},
    {'output_type': 'display_data', 'data': {'image/png': 'AAEC', 'text/plain': '<Figure>'}},
    {'output_type': 'execute_result', 'data': {'text/plain': '42'}},
  ]
  cells = [
    {'cell_type': 'markdown', 'source': ['# Title\n', 'text']},
    {'cell_type': 'code', 'source': 'x = 1', 'outputs': outputs},
  ]
  (tmp_path / 'one.ipynb').write_text(json.dumps({'cells': cells}))
  monkeypatch.setattr(notebook_pages, 'FOLDER', tmp_path)
  assert notebook_pages.names() == ['one']
  page, pictures = notebook_pages.page('one')
  assert pictures == {'one_1.png': b'\0\1\2'}
  assert page.split('\n\n') == [
    '# Title\ntext',
    '```{ .python }\nx = 1\n```',
    '````{ .text .output }\nred ``` <b>\ntwo\n````',
    '![Output of the cell above](one_1.png)',
    '```{ .text .output }\n42\n```\n',
  ]


def test_the_site_leads_to_every_notebook(repository):
  navigation = (repository / 'mkdocs.yml').read_text(encoding='utf-8')
  assert [name for name in notebook_pages.names() if f': notebooks/{name}.md\n' not in navigation] == []
