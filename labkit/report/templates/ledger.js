"use strict";
// Filters and sorting. Without a script every row is there, in the order of the sources.
const form = document.getElementById("filters");
const body = document.querySelector("#claims tbody");
const rows = [...body.rows];
const names = [...form.elements].map((field) => field.name).filter(Boolean);

function apply() {
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const text = (row.id + " " + row.textContent).toLowerCase();
    const picked = names.every(
      (name) => name === "words" || !form.elements[name].value || row.dataset[name] === form.elements[name].value);
    row.hidden = !(picked && words.every((word) => text.includes(word)));
    count += row.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = count + " of " + rows.length + " claims";
  const query = new URLSearchParams(names.map((name) => [name, form.elements[name].value]).filter((pair) => pair[1]));
  try {
    history.replaceState(null, "", (String(query) ? "?" + query : location.pathname) + location.hash);
  } catch { /* a page opened from a file may not have its address changed everywhere */ }
}

function reveal() {
  // A link to a claim that the filters hide shows it all the same.
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (row && row.hidden) { form.reset(); apply(); }
  if (row && row.closest("details")) row.closest("details").open = true;
  if (row) row.scrollIntoView();
}

function sortable(head, column) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      const [p, q] = [parseFloat(x), parseFloat(y)];
      if (column === 3) return (Number.isNaN(p) - Number.isNaN(q)) || ((down ? -1 : 1) * (p - q)) || 0;
      return (down ? -1 : 1) * x.localeCompare(y, "en", { numeric: true });
    };
    body.append(...[...rows].sort(order));
  });
}

const given = new URLSearchParams(location.search);
for (const name of names) if (given.has(name)) form.elements[name].value = given.get(name);
[...document.querySelectorAll("#claims thead th")].forEach(sortable);
form.hidden = false;
form.addEventListener("input", apply);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(apply));
addEventListener("hashchange", reveal);
apply();
reveal();
