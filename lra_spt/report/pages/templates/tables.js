// Tables of class "sorted", or in a part of that class: a click on a heading sorts, what is typed keeps the rows
// (and details) that have all of its words. Without scripts a page shows everything in the order of the study.
'use strict';
const text = node => node.textContent.toLowerCase();
const key = cell => {
  const shown = (cell?.dataset.value ?? cell?.textContent ?? '').trim().replace('\u2212', '-');
  const number = parseFloat(shown.replaceAll(',', ''));
  return Number.isNaN(number) ? shown.toLowerCase() : number;
};
const order = (a, b) => (typeof a === typeof b ? (a > b) - (a < b) : typeof a === 'number' ? -1 : 1);
for (const table of document.querySelectorAll('table.sorted, .sorted table')) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    if (!text(button).trim()) button.textContent = 'Row';
    head.append(button);
    button.onclick = () => {
      // Numbers start with the largest, names with the first.
      const first = [...body.rows].some(row => typeof key(row.cells[column]) === 'number') ? 'descending' : 'ascending';
      const other = { ascending: 'descending', descending: 'ascending' };
      const now = other[head.ariaSort] ?? first;
      for (const cell of table.tHead.rows[0].cells) cell.ariaSort = cell === head ? now : null;
      const sign = now === 'ascending' ? 1 : -1;
      const known = row => Boolean(row.cells[column]?.textContent.trim());
      const rows = [...body.rows].map(row => [known(row), key(row.cells[column]), row]);
      rows.sort((a, b) => b[0] - a[0] || (a[0] ? sign * order(a[1], b[1]) : 0));
      body.append(...rows.map(row => row[2]));
    };
  });
}
for (const field of document.querySelectorAll('input.filter')) {
  const parts = [...document.querySelectorAll('table.sorted tbody tr, details.filtered')];
  const words = parts.map(part => text(part.querySelector('th, summary') ?? part));
  field.oninput = () => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    parts.forEach((part, i) => { part.hidden = !wanted.every(word => words[i].includes(word)); });
  };
  field.closest('p').hidden = false;
  field.value = decodeURIComponent(location.hash.match(/^#find=(.*)/)?.[1] ?? '');
  field.oninput();
}
