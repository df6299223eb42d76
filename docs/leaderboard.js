// Search and filter of docs/leaderboard.md; tables.js sorts. Without scripts the page shows whole tables.
const tables = [...document.querySelectorAll('.leaderboard table')];
const rows = tables.flatMap(table => {
  const column = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent === 'Training');
  return [...table.tBodies[0].rows].map(row => {
    const kind = row.cells[column].textContent.match(/\w+/)?.[0] ?? '';
    return { row, kind, words: row.textContent.toLowerCase() };
  });
});
const bar = document.querySelector('.leaderboard-bar');
if (bar) {
  const search = document.createElement('input');
  Object.assign(search, { type: 'search', placeholder: 'model, source, …' });
  const select = document.createElement('select');
  select.add(new Option('all', ''));
  for (const kind of [...new Set(rows.map(({ kind }) => kind))].sort()) select.add(new Option(kind, kind));
  const count = Object.assign(document.createElement('output'), { ariaLive: 'polite' });
  const show = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { row, kind, words } of rows) {
      row.hidden = (select.value && select.value !== kind) || !wanted.every(word => words.includes(word));
    }
    count.value = `${rows.filter(({ row }) => !row.hidden).length} of ${rows.length} rows`;
  };
  search.oninput = select.onchange = show;
  for (const [name, field] of [['Search', search], ['Training', select]]) {
    const label = document.createElement('label');
    label.append(name, field);
    bar.append(label);
  }
  bar.append(count);
  show();
}
