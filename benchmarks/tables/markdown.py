"""Formats numbers and tables in Markdown."""


def table(names, rows) -> list[str]:
  """Returns the lines of a table. rows: tuples of cells, in the order of the names."""
  lines = [names, *rows]
  head, *body = [f'| {" | ".join(map(str, cells))} |' for cells in lines]
  return [head, '|---' * len(names) + '|', *body]


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def signed(value: float, metric: str = 'accuracy') -> str:
  """Formats a difference in points, or in R²: '+1.5', '−0.35'."""
  return (f'{value:+.2f}' if metric == 'r2' else f'{100 * value:+.1f}').replace('-', '−')


def score(value: float, metric: str = 'accuracy') -> str:
  """Formats an accuracy in per cent, or an R²: '57.0', '−0.35'."""
  return (f'{value:.2f}' if metric == 'r2' else percent(value)).replace('-', '−')


def difference(one: dict) -> str:
  """Formats a difference with its interval, in bold where it is significant: '**+1.5 (+0.2 to +2.8)**'."""
  metric = one.get('metric', 'accuracy')
  middle, low, high = (signed(one[key], metric) for key in ('estimate', 'low', 'high'))
  shown = f'{middle} ({low} to {high})'
  return f'**{shown}**' if one.get('significant') else shown
