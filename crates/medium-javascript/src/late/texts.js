// Searches in long texts for long texts. It relies on nothing that a program can replace.
(function (host) {
  "use strict";
  const {find, slice, visible} = host;
  // The language's own notation for references in a replacement.
  const expanded = (by, within, sought, at) => {
    let text = "", from = 0;
    for (let i = find(by, "$", 0); i >= 0 && i + 1 < by.length; i = find(by, "$", from)) {
      const next = by[i + 1];
      const part = next === "$" ? "$" : next === "&" ? sought : next === "`" ? slice(within, 0, at) :
        next === "'" ? slice(within, at + sought.length) : undefined;
      text += slice(by, from, i) + (part === undefined ? "$" : part);
      from = i + (part === undefined ? 1 : 2);
    }
    return text + slice(by, from);
  };
  return {
    split: (within, sought, limit) => {
      const parts = [];
      if (limit === 0) return parts;
      let from = 0;
      for (let at = find(within, sought, 0); at >= 0; at = find(within, sought, from)) {
        visible(parts, parts.length, slice(within, from, at));
        if (parts.length === limit) return parts;
        from = at + sought.length;
      }
      visible(parts, parts.length, slice(within, from));
      return parts;
    },
    replace: (within, sought, by, all) => {
      let text = "", from = 0;
      for (let at = find(within, sought, 0); at >= 0; at = find(within, sought, from)) {
        text += slice(within, from, at) +
          (typeof by === "function" ? `${by(sought, at, within)}` : expanded(by, within, sought, at));
        from = at + sought.length;
        if (!all) break;
      }
      return text + slice(within, from);
    },
  };
});
