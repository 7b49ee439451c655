// Server-Sent Events, read from text as it comes.

import { parsed } from "./json.js";

/** Feed it text as it comes; it calls back with whole messages. The server ends its lines with \n. */
export function parser(message) {
  let rest = "";
  return (text) => {
    rest += text;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const fields = { event: "message", data: "", id: "" };
      for (const line of rest.slice(0, end).split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
      }
      rest = rest.slice(end + 2);
      if (fields.data) message(fields.event, parsed(fields.data), fields.id);
    }
  };
}
