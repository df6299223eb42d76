"""The colours of pages, in light mode, dark mode and print: CSS variables of the base template, by name.

`line-0` to `line-7` are those of lines; they are legible on their background, and most colour-blind readers
can tell them apart.
"""

LIGHT = {
  'paper': '#fff',
  'panel': '#f4f6f8',
  'ink': '#1b1f24',
  'faint': '#57606a',
  'rule': '#d8dee4',
  'good': '#1a7f37',
  'bad': '#b3261e',
  'line-0': '#4b5563',
  'line-1': '#8a6d3b',
  'line-2': '#7a7a7a',
  'line-3': '#0b62a4',
  'line-4': '#b4480f',
  'line-5': '#1a7f5a',
  'line-6': '#8b3f8f',
  'line-7': '#a0212e',
}
DARK = {
  'paper': '#14171a',
  'panel': '#1d2226',
  'ink': '#e6e8ea',
  'faint': '#a0a8b0',
  'rule': '#3a4147',
  'good': '#5fc27e',
  'bad': '#ff8a80',
  'line-0': '#b6bec8',
  'line-1': '#d2b06a',
  'line-2': '#8f979f',
  'line-3': '#6cb6f5',
  'line-4': '#f39a5c',
  'line-5': '#5fcf9f',
  'line-6': '#d794da',
  'line-7': '#f2858f',
}
PRINT = LIGHT | {'panel': '#fff', 'ink': '#000', 'faint': '#444', 'rule': '#bbb'}
# By number.
LINES = sum(name.startswith('line-') for name in LIGHT)
GREY, BROWN, SILVER, BLUE, ORANGE, GREEN, PURPLE, RED = range(LINES)
