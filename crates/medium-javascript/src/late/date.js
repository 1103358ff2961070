// Dates without a time zone: programs cannot see the host's zone and clock, so local time is UTC, and time
// stands still while a program runs. It relies on nothing that a program can replace: its natives are those of
// the constructor that was made a moment ago.
(function (host) {
  "use strict";
  const {apply, clock, construct, dressed, hidden, isDate, zoned} = host;
  const NativeDate = Date, proto = NativeDate.prototype;
  const nativeParse = NativeDate.parse, utc = NativeDate.UTC;
  const native = (name) => {
    const method = proto[name];
    return (of) => apply(method, of, []);
  };
  const time = native("getTime");
  const parse = (text) => apply(nativeParse, NativeDate, [zoned(text)]);
  const instant = (value) => {
    if (isDate(value)) return time(value);
    if (value !== null && (typeof value === "object" || typeof value === "function")) {
      const inner = value.valueOf();
      value = inner !== null && typeof inner === "object" ? `${value}` : inner;
    }
    return typeof value === "string" ? parse(value) : +value;
  };
  const UtcDate = dressed(function (...parts) {
    if (new.target === undefined) return text(construct(NativeDate, [clock()], NativeDate));
    const at = parts.length === 0 ? clock() : parts.length === 1 ? instant(parts[0]) : apply(utc, NativeDate, parts);
    return construct(NativeDate, [at], new.target);
  }, "Date", 7);
  hidden(UtcDate, "now", dressed(() => clock(), "now", 0));
  hidden(UtcDate, "parse", dressed((text) => parse(`${text}`), "parse", 1));
  hidden(UtcDate, "UTC", utc);
  hidden(proto, "constructor", UtcDate);
  const utcParts = ["FullYear", "Month", "Date", "Day", "Hours", "Minutes", "Seconds", "Milliseconds"];
  for (let at = 0; at < utcParts.length; at++) {
    const part = utcParts[at];
    for (let setting = 0; setting < 2; setting++) {
      const verb = setting === 1 ? "set" : "get";
      const method = proto[verb + "UTC" + part];
      if (method === undefined) continue;
      hidden(proto, verb + part,
        dressed(function (...parts) { return apply(method, this, parts); }, verb + part, method.length));
    }
  }
  const year = native("getUTCFullYear"), month = native("getUTCMonth"), day = native("getUTCDate");
  const weekday = native("getUTCDay"), hours = native("getUTCHours"), minutes = native("getUTCMinutes");
  const seconds = native("getUTCSeconds"), setYear = proto.setUTCFullYear;
  const days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const two = (number) => (number < 10 ? "0" : "") + number;
  const four = (number) => {
    const size = number < 0 ? -number : number;
    return (number < 0 ? "-" : "") + (size < 10 ? "000" : size < 100 ? "00" : size < 1000 ? "0" : "") + size;
  };
  const dateText = (of) => `${days[weekday(of)]} ${months[month(of)]} ${two(day(of))} ${four(year(of))}`;
  const clockText = (of) => `${two(hours(of))}:${two(minutes(of))}:${two(seconds(of))}`;
  const text = (of) => `${dateText(of)} ${clockText(of)} GMT+0000 (Coordinated Universal Time)`;
  const localDate = (of) => `${month(of) + 1}/${day(of)}/${year(of)}`;
  const localTime = (of) =>
    `${hours(of) % 12 || 12}:${two(minutes(of))}:${two(seconds(of))} ${hours(of) < 12 ? "AM" : "PM"}`;
  const shows = (name, make) =>
    hidden(proto, name, dressed(function () {
      const at = time(this);
      return at !== at ? "Invalid Date" : make(this);
    }, name, 0));
  shows("toString", text);
  shows("toDateString", dateText);
  shows("toTimeString", (of) => `${clockText(of)} GMT+0000 (Coordinated Universal Time)`);
  shows("toLocaleString", (of) => `${localDate(of)}, ${localTime(of)}`);
  shows("toLocaleDateString", localDate);
  shows("toLocaleTimeString", localTime);
  hidden(proto, "getTimezoneOffset", dressed(function () {
    const at = time(this);
    return at !== at ? at : 0;
  }, "getTimezoneOffset", 0));
  hidden(proto, "getYear", dressed(function () { return year(this) - 1900; }, "getYear", 0));
  hidden(proto, "setYear", dressed(function (value) {
    const number = +value;
    return apply(setYear, this, [number >= 0 && number <= 99 ? 1900 + (number - number % 1) : number]);
  }, "setYear", 1));
  return {Date: UtcDate, prototype: proto, isoText: native("toISOString"), time};
});
