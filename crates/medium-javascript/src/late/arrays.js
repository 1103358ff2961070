// Functions that the engine's natives would run without interruption. They rely on nothing that a program can replace:
// neither on globals nor on the methods and iterators of arrays.
(function (host) {
  "use strict";
  const {apply, bounded, isLeaf, sort, visible} = host;
  const flatten = (into, from, depth) => {
    for (let at = 0; at < from.length; at++) {
      if (!(at in from)) continue;
      const item = from[at];
      // The host decides what is an array; a proxy of an array is one too.
      const list = depth > 0 ? bounded(item) : undefined;
      if (list !== undefined) flatten(into, list, depth - 1);
      else visible(into, into.length, item);
    }
    return into;
  };
  return {
    flat: (list, depth) => flatten([], list, depth),
    flatMap: (list, mapper, self, whole) => {
      const mapped = [];
      for (let at = 0; at < list.length; at++)
        if (at in list) visible(mapped, mapped.length, apply(mapper, self, [list[at], at, whole]));
      return flatten([], mapped, 1);
    },
    // Sorted by their texts; each text is made once.
    sorted: (list) => {
      const length = list.length, rows = [];
      let absent = 0;
      for (let at = 0; at < length; at++) {
        if (!(at in list)) continue;
        const item = list[at];
        if (item === undefined) absent += 1;
        else visible(rows, rows.length, {__proto__: null, text: `${item}`, item});
      }
      sort(rows, (one, other) => (one.text < other.text ? -1 : one.text > other.text ? 1 : 0));
      let at = 0;
      for (; at < rows.length; at++) list[at] = rows[at].item;
      for (; absent > 0; absent--, at++) list[at] = undefined;
      for (; at < length; at++) delete list[at];
      return list;
    },
    // A replacer function for a list of names.
    listed: (given) => {
      const names = [], known = {__proto__: null};
      for (let at = 0; at < given.length; at++) {
        const name = given[at];
        if (typeof name !== "string" && typeof name !== "number") continue;
        const text = `${name}`;
        if (text in known) continue;
        known[text] = true;
        visible(names, names.length, text);
      }
      return (key, value) => {
        if (typeof value !== "object" || value === null || isLeaf(value)) return value;
        const chosen = {};
        for (let at = 0; at < names.length; at++) visible(chosen, names[at], value[names[at]]);
        return chosen;
      };
    },
  };
});
