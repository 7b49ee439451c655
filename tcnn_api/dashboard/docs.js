// The OpenAPI document, to read and to try: Swagger's page, with what a screen reader and a keyboard miss in it.

const accessible = ({ React: { createElement: make, Fragment } }) => ({
  // Within the button that opens an operation its name is no link: nothing in a button can be reached.
  components: { DeepLink: ({ text }) => make("span", {}, text) },
  // Those of its groups are h3.
  wrapComponents: { operations: (Operations) => (props) => make(Fragment, {}, make("h2", { className: "unseen" }, "Operations"), make(Operations, props)) },
});

/** What scrolls can be reached, and what is pressed or chosen has a name. */
function mend(root) {
  for (const code of root.querySelectorAll(".microlight:not([tabindex])")) code.tabIndex = 0;
  for (const control of root.querySelectorAll("select:not([aria-label]), textarea:not([aria-label])")) {
    const name = control.closest("[data-param-name]")?.dataset.paramName ?? "Media type";
    if (!control.labels.length) control.setAttribute("aria-label", name);
  }
  for (const table of root.querySelectorAll("table[role=region]")) table.removeAttribute("role"); // all of one name
  for (const heading of root.querySelectorAll(".modal-ux-header h3")) heading.ariaLevel = "2";
  for (const heading of root.querySelectorAll(".modal-ux-content h4")) heading.ariaLevel = "3";
  for (const button of root.querySelectorAll(".close-modal")) button.ariaLabel = "Close";
  for (const button of root.querySelectorAll(".copy-to-clipboard button")) button.ariaLabel = "Copy";
}

const root = document.getElementById("docs");
new MutationObserver(() => mend(root)).observe(root, { childList: true, subtree: true });
SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", deepLinking: true, plugins: [accessible], syntaxHighlight: { theme: "obsidian" } });
