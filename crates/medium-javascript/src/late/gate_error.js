// The error that a refused call throws.
(function (host) {
  "use strict";
  const {Error, hidden, visible} = host;
  class GateError extends Error {
    constructor(message, fields) {
      super(message);
      visible(this, "type", fields?.type);
      visible(this, "code", fields?.code);
      visible(this, "retry", fields?.retry);
      visible(this, "data", fields?.data);
    }
  }
  hidden(GateError.prototype, "name", "GateError");
  return {GateError};
});
