// What `queueMicrotask` needs of the language.
(function (host) {
  "use strict";
  let settle;
  const promise = new host.Promise((resolve) => { settle = resolve; });
  settle();
  return {resolved: promise, alone: (job) => () => { job(); }};
});
