"use strict";
// What every page has. It works without this; it adds the theme, sorting, and what is folded away to print.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Theme: remembered only while the page is open.

  const theme = document.getElementById("theme");
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  // Sorting: rows without a number stay at the end.

  const sortBy = (table, column, direction) => {
    const sign = direction === "ascending" ? 1 : -1;
    const value = (row) => row.cells[column].dataset.sort ?? "";
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const difference = column === 0 ? x.localeCompare(y) : Number(x) - Number(y);
      return sign * difference;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      if (head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", place === column ? direction : "none");
    });
  };
  for (const table of all("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button")?.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const first = head.dataset.first ?? "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        sortBy(table, column, now === first ? other : first);
      });
    });
  }

  // Printing shows what is folded away.

  addEventListener("beforeprint", () => all("details:not([open])").forEach((each) => { each.open = true; each.dataset.folded = ""; }));
  addEventListener("afterprint", () => all("details[data-folded]").forEach((each) => { each.open = false; delete each.dataset.folded; }));
})();
