// A list of what was uploaded, a page at a time; what arrives meanwhile, from whichever page it was sent, is in it.

import { h } from "../dom.js";
import { get } from "../server/http.js";
import { beganAfterNothing, trouble } from "../components/parts.js";
import { putRows } from "../components/rows.js";
import { breakable, scrolling } from "../components/scrolling.js";
import { rights } from "../server/rights.js";
import { onUploaded } from "./outbox.js";

const LIMIT = 50;

/**
 * `kind` is the server's word for them, `after` where the page before ended, `home` the address of the first page and
 * `older(next)` that of the next one; `cells(one)` are the texts of a row behind its name.
 */
export function listing(kind, { title, none, heads, cells, link, after, home, older, signal }) {
  const body = h("tbody");
  const head = h("tr", {}, heads.map((word) => h("th", { scope: "col" }, word)));
  const table = scrolling(title, { class: "listing", hidden: true },
    h("table", {}, h("thead", {}, head), body));
  const state = h("div", { class: "state" }, h("p", { class: "loading" }, "Loading…"));
  const pager = h("nav", { class: "pager", "aria-label": `Pages of ${title}` });
  const row = (one) => h("tr", { "data-row": one.id }, h("th", { scope: "row", class: "long" }, h("a", { href: link(one) }, breakable(one.name))),
    [...cells(one), ...(several ? [one.tenant] : [])].map((value) => h("td", {}, value)));
  let turn = 0;
  let several = false; // tenants whose things may be among them

  async function load() {
    const own = (turn += 1);
    try {
      const page = await get(`${kind}?${new URLSearchParams({ limit: LIMIT, ...(after && { after }) })}`, { signal });
      if (own !== turn) return; // something else arrived, and it is asked again
      putRows(body, page.data.map(row).map((made) => [...body.children].find((old) => old.isEqualNode(made)) ?? made));
      table.hidden = !page.data.length;
      state.replaceChildren(...(page.data.length ? [] : [h("p", { class: "empty" }, after ? "There are no older entries." : none)]));
      pager.replaceChildren(...[
        after && h("a", { class: "button", href: home }, "Newest"),
        page.next && h("a", { class: "button", href: older(page.next) }, "Older"),
      ].filter(Boolean));
    } catch (error) {
      if (error.name !== "AbortError" && own === turn) state.replaceChildren(after && error.status === 404 ? beganAfterNothing(home) : trouble(error, load));
    }
  }

  load();
  rights().then((now) => {
    if (!now.several) return;
    several = true;
    head.append(h("th", { scope: "col" }, "Tenant"));
    return load();
  }, () => {});
  onUploaded(table, (made, path) => path === kind && load());
  return [table, state, pager];
}
