"use strict";
// Filters and sorting. Both are kept in the address, so that a view can be linked to and survives a
// reload. Without a script every row is shown, in the order of the sources.
const form = document.getElementById("filters");
const body = document.querySelector("#claims tbody");
const rows = [...body.rows];
const heads = [...document.querySelectorAll("#claims thead th")];
const names = [...form.elements].map((field) => field.name).filter(Boolean);
const filters = names.filter((name) => name !== "words" && name !== "sort");
// The text that words are searched in: without the provenance, which is alike for many claims.
const texts = new Map(rows.map((row) => {
  const copy = row.cloneNode(true);
  copy.querySelectorAll("details.provenance").forEach((part) => part.remove());
  return [row, (row.id + " " + copy.textContent).toLowerCase()];
}));

function order() {
  const wanted = form.elements.sort.value;
  const column = heads.findIndex((head) => head.dataset.key === wanted.replace("-", ""));
  const way = wanted.startsWith("-") ? -1 : 1;
  heads.forEach((head, number) => {
    if (number === column) head.setAttribute("aria-sort", way < 0 ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  if (column < 0) return rows;
  const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  return [...rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (!heads[column].hasAttribute("data-number")) return way * x.localeCompare(y, "en", { numeric: true });
    const [p, q] = [parseFloat(x), parseFloat(y)];
    return (Number.isNaN(p) - Number.isNaN(q)) || (way * (p - q)) || 0; // what has no number goes last
  });
}

function apply() {
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const picked = filters.every(
      (name) => !form.elements[name].value || row.dataset[name] === form.elements[name].value);
    row.hidden = !(picked && words.every((word) => texts.get(row).includes(word)));
    count += row.hidden ? 0 : 1;
  }
  body.append(...order());
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

function sortable(head) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    form.elements.sort.value = (down ? "-" : "") + head.dataset.key;
    apply();
  });
}

const given = new URLSearchParams(location.search);
for (const name of names) if (given.has(name)) form.elements[name].value = given.get(name);
heads.forEach(sortable);
form.hidden = false;
form.addEventListener("input", apply);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(apply));
addEventListener("hashchange", reveal);
apply();
reveal();
