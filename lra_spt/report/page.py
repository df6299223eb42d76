"""One self-contained report.html from run folders: results, their uncertainty, cost and settings."""

from lra_spt.report import views
from lra_spt.report.pages import document


def write_report(runs, path, title, story=None, started=(), damaged=()):
  """Writes one HTML file without external resources, replacing `path` at once or not at all.

  Args:
    runs: list of FinishedRun, possibly empty (the page then says so).
    path: file to write; its folder must exist.
    title: plain text.
    story: plain text, paragraphs separated by empty lines, shown under the title.
    started: list of Unfinished.
    damaged: list of Damaged.

  Returns:
    The path as pathlib.Path.

  Raises:
    DamagedFile: as `tables.summarise` does, before writing.
    FileAccessError: the file cannot be written.
  """
  values = views.report_view(runs, story, started, damaged)
  return document.write_page(path, 'report.html', title=title, **values)
