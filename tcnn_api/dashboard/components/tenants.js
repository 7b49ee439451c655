// Whose things are shown, for a key that sees what all tenants have.

import { fresh, h } from "../dom.js";
import { rights, rightsTo } from "../server/rights.js";

/** A field that asks for one tenant's; `changed(tenant)` hears of it, `offer(tenants)` are names to choose from. */
export function tenantFilter(id, value, changed) {
  const list = h("datalist", { id: fresh("tenants") });
  const field = h("input", { type: "search", id, list: list.id, placeholder: "All", autocomplete: "off", spellcheck: "false", size: "12" });
  const seen = new Set();
  field.value = value;
  field.addEventListener("change", () => changed(field.value.trim()));
  const element = h("div", { hidden: true }, h("label", { for: id }, "Tenant"), field, list);
  rights().then(({ several }) => (element.hidden = !several), () => {});
  return {
    element,
    offer(tenants) {
      for (const tenant of tenants) {
        if (!seen.has(tenant)) list.append(h("option", { value: tenant }));
        seen.add(tenant);
      }
    },
  };
}

/** Whose an upload is, and what may be done with it, said in a place; what changes it is left out of `page` where it may not. */
export function standing(page, noun, owner, place) {
  rights().then((now) => {
    const { changes, why } = rightsTo(noun, owner, now);
    page.classList.toggle("fixed", !changes);
    place.replaceChildren(why && h("p", { class: "hint" }, why));
  }, () => {});
}

/** Said where something is to be made, to a key that may not; where it may, styles hide it. */
export function notAllowed(what) {
  return h("p", { class: "notice why" }, `Your key may look and ${what} nothing. Use one with the scope “submit”.`);
}
