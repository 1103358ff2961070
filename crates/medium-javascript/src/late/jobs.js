// The part of `queueMicrotask` that is written in the language itself.
(function (host) {
  "use strict";
  let settle;
  const promise = new host.Promise((resolve) => { settle = resolve; });
  settle();
  return {resolved: promise, alone: (job) => () => { job(); }};
});
