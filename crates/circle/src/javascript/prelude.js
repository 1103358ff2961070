// Runs once in every new sandbox, before any program. It takes away what would make a program differ from one run to the
// next, closes the gaps through which an ended program could go on, and hands the host a few functions of its own.
// Everything it will need later is taken out of the globals now, because a program may replace whatever it finds there.
(function (host) {
  "use strict";
  const globals = globalThis;
  const {apply, construct, defineProperty, deleteProperty, getOwnPropertyDescriptor, getPrototypeOf, ownKeys, set} =
    Reflect;
  const NativeDate = Date, NativePromise = Promise, NativeProxy = Proxy;
  const NativeError = Error, NativeTypeError = TypeError, NativeString = String, NativeNumber = Number;
  const isArray = Array.isArray;
  const is = Object.is;
  const create = Object.create;
  const bound = Function.prototype.call.bind(Function.prototype.bind, Function.prototype.call);
  const exec = bound(RegExp.prototype.exec);
  const slice = bound(NativeString.prototype.slice);
  const padStart = bound(NativeString.prototype.padStart);
  const isWellFormed = bound(NativeString.prototype.isWellFormed);
  const toWellFormed = bound(NativeString.prototype.toWellFormed);
  const numberText = bound(NativeNumber.prototype.toString);
  const bigText = bound(BigInt.prototype.toString);
  const symbolText = bound(Symbol.prototype.toString);
  const regexpText = bound(RegExp.prototype.toString);
  const stringify = JSON.stringify;
  const mapSize = bound(getOwnPropertyDescriptor(Map.prototype, "size").get);
  const setSize = bound(getOwnPropertyDescriptor(Set.prototype, "size").get);
  const mapEach = bound(Map.prototype.forEach);
  const setEach = bound(Set.prototype.forEach);
  const {now, random, print, check, beat, plain} = host;

  // Descriptors have no prototype: a program may have put a getter named `get` into the common one.
  const hidden = (holder, name, value) =>
    defineProperty(holder, name, {__proto__: null, value, writable: true, enumerable: false, configurable: true});
  // A replacement looks like what it replaces.
  const dressed = (made, name, length) => {
    defineProperty(made, "name", {__proto__: null, value: name, configurable: true});
    defineProperty(made, "length", {__proto__: null, value: length, configurable: true});
    return made;
  };
  const replace = (holder, name, make) => {
    const native = holder[name];
    if (typeof native === "function") hidden(holder, name, dressed(make(native), name, native.length));
  };

  // --- What does not exist here: other threads, weak references, a way to see the collector at work or to hook errors.
  for (const name of ["WeakRef", "FinalizationRegistry", "Atomics", "SharedArrayBuffer", "gc", "navigator"])
    deleteProperty(globals, name);
  for (const name of ["prepareStackTrace", "stackTraceLimit", "captureStackTrace"]) deleteProperty(NativeError, name);

  // --- Chance and time come from the host; time is UTC and stands still while a program runs.
  hidden(Math, "random", dressed(() => random(), "random", 0));
  const origin = now();
  hidden(globals, "performance", Object.freeze({now: dressed(() => now() - origin, "now", 0), timeOrigin: origin}));

  const proto = NativeDate.prototype;
  const time = bound(proto.getTime), isoText = bound(proto.toISOString);
  const nativeParse = NativeDate.parse, utc = NativeDate.UTC;
  const zone = /(?:Z|[+-]\d\d:?\d\d|(?:GMT|UTC|UT|[ECMP][SD]T))\s*(?:\([^)]*\))?\s*$/i;
  const dayOnly = /^\s*[+-]?\d{4,6}(?:-\d\d(?:-\d\d)?)?\s*$/;
  const isoTime = /^\s*[+-]?\d{4,6}-\d\d(?:-\d\d)?T\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?\s*$/;
  const parse = (text) => {
    if (exec(dayOnly, text) !== null || exec(zone, text) !== null) return nativeParse(text);
    return nativeParse(text + (exec(isoTime, text) !== null ? "Z" : " UTC"));
  };
  const instant = (value) => {
    if (value instanceof NativeDate) return time(value);
    if (value !== null && (typeof value === "object" || typeof value === "function")) {
      const inner = value.valueOf();
      value = inner !== null && typeof inner === "object" ? NativeString(value) : inner;
    }
    return typeof value === "string" ? parse(value) : NativeNumber(value);
  };
  const UtcDate = dressed(function (...parts) {
    if (new.target === undefined) return new UtcDate().toString();
    const at = parts.length === 0 ? now() : parts.length === 1 ? instant(parts[0]) : apply(utc, NativeDate, parts);
    return construct(NativeDate, [at], new.target);
  }, "Date", 7);
  defineProperty(UtcDate, "prototype", {value: proto, writable: false, enumerable: false, configurable: false});
  hidden(UtcDate, "now", dressed(() => now(), "now", 0));
  hidden(UtcDate, "parse", dressed((text) => parse(NativeString(text)), "parse", 1));
  hidden(UtcDate, "UTC", utc);
  hidden(proto, "constructor", UtcDate);
  hidden(globals, "Date", UtcDate);
  for (const part of ["FullYear", "Month", "Date", "Day", "Hours", "Minutes", "Seconds", "Milliseconds"]) {
    for (const verb of ["get", "set"]) {
      const native = proto[verb + "UTC" + part];
      if (native !== undefined)
        hidden(proto, verb + part, dressed(function (...parts) { return apply(native, this, parts); }, verb + part,
          native.length));
    }
  }
  const year = bound(proto.getUTCFullYear), month = bound(proto.getUTCMonth), day = bound(proto.getUTCDate);
  const weekday = bound(proto.getUTCDay), hours = bound(proto.getUTCHours), minutes = bound(proto.getUTCMinutes);
  const seconds = bound(proto.getUTCSeconds), setYear = bound(proto.setUTCFullYear);
  const days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const two = (number) => padStart(numberText(number), 2, "0");
  const four = (number) => (number < 0 ? "-" : "") + padStart(numberText(number < 0 ? -number : number), 4, "0");
  const dateText = (of) => `${days[weekday(of)]} ${months[month(of)]} ${two(day(of))} ${four(year(of))}`;
  const clockText = (of) => `${two(hours(of))}:${two(minutes(of))}:${two(seconds(of))}`;
  const localDate = (of) => `${month(of) + 1}/${day(of)}/${year(of)}`;
  const localTime = (of) =>
    `${hours(of) % 12 || 12}:${two(minutes(of))}:${two(seconds(of))} ${hours(of) < 12 ? "AM" : "PM"}`;
  const texts = {
    toString: (of) => `${dateText(of)} ${clockText(of)} GMT+0000 (Coordinated Universal Time)`,
    toDateString: dateText,
    toTimeString: (of) => `${clockText(of)} GMT+0000 (Coordinated Universal Time)`,
    toLocaleString: (of) => `${localDate(of)}, ${localTime(of)}`,
    toLocaleDateString: localDate,
    toLocaleTimeString: localTime,
  };
  for (const name of ownKeys(texts)) {
    const text = texts[name];
    hidden(proto, name, dressed(function () { return is(time(this), NaN) ? "Invalid Date" : text(this); }, name, 0));
  }
  hidden(proto, "getTimezoneOffset", dressed(function () { return is(time(this), NaN) ? NaN : 0; },
    "getTimezoneOffset", 0));
  hidden(proto, "getYear", dressed(function () { return year(this) - 1900; }, "getYear", 0));
  hidden(proto, "setYear", dressed(function (value) {
    const number = NativeNumber(value);
    return setYear(this, number >= 0 && number <= 99 ? 1900 + (number - number % 1) : number);
  }, "setYear", 1));

  // --- Some natives swallow the error that ends a program. Behind each of them stands `check`, which raises it again.
  const SafePromise = dressed(function (executor) {
    if (new.target === undefined) throw new NativeTypeError("Promise is a constructor: call it with new");
    const made = construct(NativePromise, [executor], new.target === SafePromise ? NativePromise : new.target);
    check();
    return made;
  }, "Promise", 1);
  defineProperty(SafePromise, "prototype",
    {value: NativePromise.prototype, writable: false, enumerable: false, configurable: false});
  for (const key of ownKeys(NativePromise)) {
    if (key === "prototype" || key === "name" || key === "length") continue;
    const property = getOwnPropertyDescriptor(NativePromise, key);
    if (typeof property.value === "function") {
      const native = property.value;
      property.value = dressed(function (...values) {
        const made = apply(native, this === SafePromise ? NativePromise : this, values);
        check();
        return made;
      }, key, native.length);
    }
    defineProperty(SafePromise, key, property);
  }
  hidden(globals, "Promise", SafePromise);
  const asyncGenerator = getPrototypeOf(getPrototypeOf(async function* () {}.prototype));
  const generatorPrototype = getPrototypeOf(async function* () {}.prototype);
  for (const holder of [generatorPrototype, asyncGenerator])
    for (const name of ["next", "return", "throw"])
      if (getOwnPropertyDescriptor(holder, name) !== undefined)
        replace(holder, name, (native) => function (...values) {
          const made = apply(native, this, values);
          check();
          return made;
        });
  // Through a promise, so that what it throws is an unhandled rejection and not lost.
  const resolved = NativePromise.resolve(), then = bound(NativePromise.prototype.then);
  hidden(globals, "queueMicrotask", dressed((job) => {
    if (typeof job !== "function") throw new NativeTypeError("queueMicrotask takes a function");
    then(resolved, () => { job(); });
  }, "queueMicrotask", 1));

  // --- Natives that go through a length without looking at the time. A sparse array can have any length and no elements,
  // and the length of an array-like can be a lie, so they are given real arrays of a bounded length and nothing else.
  const LONG = 1 << 24, SLOW = 1 << 16, SEARCH = 2 ** 32;
  const tooLong = () => new RangeError0(`an array longer than ${LONG} cannot be processed as a whole`);
  const RangeError0 = RangeError;
  const bounded = (value, mutates) => {
    if (plain(value)) {
      if (value.length > LONG) throw tooLong();
      if (value.length > SLOW) beat();
      return value;
    }
    if (value === null || value === undefined) throw new NativeTypeError("cannot convert undefined or null to object");
    if (mutates) throw new NativeTypeError("this array method changes arrays only");
    const length = NativeNumber(value.length);
    if (length > LONG) throw tooLong();
    const copy = [];
    for (let at = 0; at < length; at++) if (typeof value !== "object" || at in value) hidden(copy, at, value[at]);
    if (length > 0 && copy.length < length) copy.length = length;
    return copy;
  };
  for (const name of ["reverse", "copyWithin", "splice", "shift", "unshift", "sort", "fill"])
    replace(Array.prototype, name, (native) => function (...values) {
      return apply(native, bounded(this, true), values);
    });
  for (const name of ["join", "slice", "toReversed", "toSorted", "toSpliced", "with", "toLocaleString"])
    replace(Array.prototype, name, (native) => function (...values) {
      return apply(native, bounded(this, false), values);
    });
  replace(Array.prototype, "concat", (native) => function (...values) {
    for (let at = 0; at < values.length; at++) if (isArray(values[at])) values[at] = bounded(values[at], false);
    return apply(native, isArray(this) ? bounded(this, false) : this, values);
  });
  const flatten = (into, from, depth) => {
    for (let at = 0; at < from.length; at++) {
      if (!(at in from)) continue;
      const item = from[at];
      if (depth > 0 && isArray(item)) flatten(into, bounded(item, false), depth - 1);
      else hidden(into, into.length, item);
    }
    return into;
  };
  const shown = (list) => {
    for (let at = 0; at < list.length; at++)
      defineProperty(list, at, {__proto__: null, enumerable: true});
    return list;
  };
  replace(Array.prototype, "flat", () => function (depth) {
    return shown(flatten([], bounded(this, false), depth === undefined ? 1 : NativeNumber(depth) || 0));
  });
  replace(Array.prototype, "flatMap", () => function (mapper, self) {
    const from = bounded(this, false), mapped = [];
    for (let at = 0; at < from.length; at++)
      if (at in from) hidden(mapped, mapped.length, apply(mapper, self, [from[at], at, this]));
    return shown(flatten([], mapped, 1));
  });
  const typed = getPrototypeOf(Uint8Array.prototype);
  const typedLength = bound(getOwnPropertyDescriptor(typed, "length").get);
  for (const name of ["fill", "reverse", "sort", "copyWithin", "indexOf", "lastIndexOf", "includes", "set", "slice",
    "join", "toReversed", "toSorted"])
    replace(typed, name, (native) => function (...values) {
      if (typedLength(this) > SLOW) beat();
      return apply(native, this, values);
    });
  for (const name of ["indexOf", "lastIndexOf", "includes", "split", "replace", "replaceAll", "startsWith", "endsWith",
    "localeCompare"])
    replace(NativeString.prototype, name, (native) => function (...values) {
      let sought = values[0];
      if (this === null || this === undefined || typeof sought !== "string" && sought !== null &&
        (typeof sought === "object" || typeof sought === "function") &&
        (sought[Symbol.split] !== undefined || sought[Symbol.replace] !== undefined)) return apply(native, this, values);
      const within = typeof this === "string" ? this : NativeString(this);
      if (values.length > 0 && sought !== undefined) values[0] = sought = NativeString(sought);
      const length = typeof sought === "string" ? sought.length : 1;
      if (within.length * length > SEARCH) throw new RangeError0("both texts are too long for a search");
      if (within.length > SLOW) beat();
      return apply(native, within, values);
    });

  // --- A program may shadow a gate's name, but not for ever: the globals cannot be frozen, nor a gate's name nailed.
  const gates = create(null);
  const nailed = (name) => new NativeTypeError(`${name} is a gate: its property cannot be redefined`);
  const frozen = () => new NativeTypeError("the global object cannot be frozen, sealed or wrapped");
  const keyOf = (key) => (typeof key === "symbol" ? key : NativeString(key));
  for (const [holder, name] of [[Object, "defineProperty"], [Reflect, "defineProperty"]])
    replace(holder, name, (native) => (target, key, property) => {
      const name = keyOf(key);
      if (target === globals && name in gates) throw nailed(name);
      return native(target, name, property);
    });
  replace(Object, "defineProperties", (native) => (target, properties) => {
    if (target !== globals) return native(target, properties);
    const keys = ownKeys(properties);
    for (let at = 0; at < keys.length; at++) {
      const property = getOwnPropertyDescriptor(properties, keys[at]);
      if (property === undefined || !property.enumerable) continue;
      if (keys[at] in gates) throw nailed(keys[at]);
      native(globals, {__proto__: null, [keys[at]]: properties[keys[at]]});
    }
    return target;
  });
  for (const name of ["__defineGetter__", "__defineSetter__"])
    replace(Object.prototype, name, (native) => function (key, accessor) {
      const name = keyOf(key);
      if ((this === globals || this === undefined) && name in gates) throw nailed(name);
      return apply(native, this, [name, accessor]);
    });
  for (const [holder, name] of [[Object, "freeze"], [Object, "seal"], [Object, "preventExtensions"],
    [Reflect, "preventExtensions"]])
    replace(holder, name, (native) => (target) => {
      if (target === globals) throw frozen();
      return native(target);
    });
  const SafeProxy = dressed(function (target, handler) {
    if (new.target === undefined) throw new NativeTypeError("Proxy is a constructor: call it with new");
    if (target === globals) throw frozen();
    return new NativeProxy(target, handler);
  }, "Proxy", 2);
  deleteProperty(SafeProxy, "prototype");
  const revocable = NativeProxy.revocable;
  hidden(SafeProxy, "revocable", dressed((target, handler) => {
    if (target === globals) throw frozen();
    return apply(revocable, NativeProxy, [target, handler]);
  }, "revocable", 2));
  hidden(globals, "Proxy", SafeProxy);

  // --- What the language gives the entity beyond the standard.
  class GateError extends NativeError {
    constructor(message, fields) {
      super(message);
      const field = (name, value) =>
        defineProperty(this, name, {__proto__: null, value, writable: true, enumerable: true, configurable: true});
      field("type", fields?.type);
      field("code", fields?.code);
      field("retry", fields?.retry);
      field("data", fields?.data);
    }
  }
  hidden(GateError.prototype, "name", "GateError");
  hidden(globals, "GateError", GateError);

  // --- Values as text. Getters are not called; what a proxy's traps throw is the program's own error.
  const BUDGET = 1 << 20, DEPTH = 4, ITEMS = 100;
  const text = (value, quoted) => {
    let left = BUDGET;
    const open = [];
    const cut = (part) => {
      if (part.length > left) part = slice(part, 0, left);
      left -= part.length;
      return part;
    };
    const keyText = (key) => {
      if (typeof key === "symbol") return `[${symbolText(key)}]`;
      return exec(/^[A-Za-z_$][\w$]*$/, key) !== null ? key : stringify(key);
    };
    const member = (holder, key, depth) => {
      const property = getOwnPropertyDescriptor(holder, key);
      if (property === undefined) return cut("<empty>");
      return "value" in property ? show(property.value, true, depth) : cut("[Getter]");
    };
    const list = (open, parts, close) => cut(open) + parts + cut(close);
    const show = (value, quoted, depth) => {
      if (left <= 0) return "";
      switch (typeof value) {
        case "string": return cut(quoted ? stringify(value) : value);
        case "number": return cut(is(value, -0) ? "-0" : numberText(value));
        case "bigint": return cut(bigText(value) + "n");
        case "symbol": return cut(symbolText(value));
        case "undefined": return cut("undefined");
        case "boolean": return cut(value ? "true" : "false");
        case "function": {
          const name = getOwnPropertyDescriptor(value, "name");
          return cut(name !== undefined && typeof name.value === "string" && name.value !== "" ?
            `[Function: ${name.value}]` : "[Function]");
        }
      }
      if (value === null) return cut("null");
      for (let at = 0; at < open.length; at++) if (open[at] === value) return cut("[Circular]");
      if (depth > DEPTH) return cut(isArray(value) ? "[Array]" : "[Object]");
      open[open.length] = value;
      const shown = inside(value, depth);
      open.length -= 1;
      return shown;
    };
    const inside = (value, depth) => {
      let parts = "", count = 0;
      const add = (make) => {
        count += 1;
        if (count > ITEMS || left <= 0) return;
        parts += (count > 1 ? cut(", ") : "") + make();
      };
      const more = (total) => { if (total > ITEMS) parts += cut(`, ... ${total - ITEMS} more`); };
      if (isArray(value)) {
        const total = value.length;
        for (let at = 0; at < total && at < ITEMS; at++) add(() => member(value, NativeString(at), depth + 1));
        more(total);
        return list("[", parts, "]");
      }
      if (value instanceof NativeDate) return cut(is(time(value), NaN) ? "Invalid Date" : isoText(value));
      const failure = failureOf(value);
      if (failure !== undefined) return cut(failure.name + (failure.message === "" ? "" : ": " + failure.message));
      const collection = kind(value);
      if (collection === "Map") {
        const total = mapSize(value);
        mapEach(value, (item, key) => add(() => show(key, true, depth + 1) + cut(" => ") + show(item, true, depth + 1)));
        more(total);
        return list(`Map(${total}) {`, parts, "}");
      }
      if (collection === "Set") {
        const total = setSize(value);
        setEach(value, (item) => add(() => show(item, true, depth + 1)));
        more(total);
        return list(`Set(${total}) {`, parts, "}");
      }
      if (value instanceof RegExp0) return cut(regexpText(value));
      if (value instanceof NativePromise) return cut("Promise {}");
      const keys = ownKeys(value);
      let total = 0;
      for (let at = 0; at < keys.length; at++) {
        const property = getOwnPropertyDescriptor(value, keys[at]);
        if (property === undefined || !property.enumerable) continue;
        total += 1;
        add(() => cut(keyText(keys[at]) + ": ") + member(value, keys[at], depth + 1));
      }
      more(total);
      const prototype = getPrototypeOf(value);
      const maker = prototype === null ? undefined : getOwnPropertyDescriptor(prototype, "constructor");
      const name = maker === undefined || typeof maker.value !== "function" ? undefined :
        getOwnPropertyDescriptor(maker.value, "name");
      const prefix = name === undefined || typeof name.value !== "string" || name.value === "Object" ||
        name.value === "" ? "" : name.value + " ";
      return list(prefix + "{", parts, "}");
    };
    return show(value, quoted, 0);
  };
  const RegExp0 = RegExp;
  const sound = (part) => (isWellFormed(part) ? part : toWellFormed(part));
  const kind = (value) => {
    try { mapSize(value); return "Map"; } catch { /* not a map */ }
    try { setSize(value); return "Set"; } catch { /* not a set */ }
    return undefined;
  };
  const failureOf = (value) => {
    if (!(value instanceof NativeError)) return undefined;
    const part = (name, otherwise) => {
      const found = value[name];
      return found === undefined ? otherwise : typeof found === "string" ? found : NativeString(found);
    };
    return {name: part("name", "Error"), message: part("message", ""), stack: part("stack", "")};
  };

  const console = {};
  for (const name of ["log", "info", "warn", "error", "debug"])
    console[name] = dressed((...values) => {
      let line = "";
      for (let at = 0; at < values.length; at++) line += (at > 0 ? " " : "") + text(values[at], false);
      print(sound(line));
    }, name, 0);
  hidden(globals, "console", console);

  return {
    // Puts a gate's name back; answers whether that could be done.
    restore: (name, gate) => {
      gates[name] = true;
      if (!hidden(globals, name, gate)) set(globals, name, gate);
      const property = getOwnPropertyDescriptor(globals, name);
      return property !== undefined && property.value === gate;
    },
    bind: (name, value) => {
      if (!hidden(globals, name, value)) set(globals, name, value);
    },
    text: (value) => sound(text(value, true)),
    // Name, message and stack of something thrown.
    failure: (thrown) => {
      try {
        const failure = failureOf(thrown);
        if (failure !== undefined) return [sound(failure.name), sound(failure.message), sound(failure.stack)];
      } catch { /* it lies about itself: it is shown as the value it is */ }
      return ["Uncaught", sound(text(thrown, true)), ""];
    },
    refusal: (message, fields) => new GateError(message, fields),
    kind,
  };
});
