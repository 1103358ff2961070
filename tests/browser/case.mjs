// The list of cases. A case is a sentence that can be false, and a function that acts in a world.
import assert from "node:assert/strict";

export const cases = [];
export const test = (name, act, options = {}) => {
  assert.ok(!cases.some((other) => other.name === name), `${name} is there twice`);
  cases.push({ name, act, options });
};
export { assert };
