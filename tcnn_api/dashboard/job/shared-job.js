// The page of a link: one job, to look at. Its secret stands after the # of the address, which no server is ever sent.

import { h } from "../dom.js";
import { key, whose } from "../server/http.js";
import * as job from "./job.js";
import { trouble } from "../components/parts.js";

const NOTHING = "This link does not work";

export function show(main, secret) {
  document.title = "A shared job · tcnn";
  document.body.classList.add("shared");
  key.lend(secret);
  let leave = () => {};
  let over = false;
  main.append(h("p", { class: "loading" }, "Loading the job…"));
  const load = () => whose(secret).then((guest) => {
    if (over) return;
    main.replaceChildren();
    if (guest.job) leave = job.show(main, guest.job);
    else main.append(h("h1", {}, NOTHING), h("p", {}, "It is not a link to a job. Ask the sender for another."));
  }).catch((error) => {
    if (over) return;
    main.replaceChildren(h("h1", {}, NOTHING), error.status === 401
      ? h("p", {}, "It has expired or been revoked, or the job was deleted. Ask the sender for another.")
      : trouble(error, load));
  });
  load();
  return () => {
    over = true;
    leave();
    key.lend("");
    document.body.classList.remove("shared");
  };
}
