"use strict";
// Renders nothing: puts elements that the server sends in their place.
const doc = document, root = doc.documentElement, $ = (id) => doc.getElementById(id), one = (of, what) => of?.querySelector(what), all = (of, what) => [...(of?.querySelectorAll(what) ?? [])];
const on = (of, name, act) => of?.addEventListener(name, act), box = (of) => of?.getBoundingClientRect() ?? {}, go = (url) => location.assign(url);
let { feed: feedUrl, cursor } = $("main").dataset;
const BAR = 66, NEAR = 800, TURNS = 160, WINDOW = 40, POLL = 2000, PAUSE = 5000, STILL = { preventScroll: true };
const policy = window.trustedTypes?.createPolicy("cantrip", { createHTML: (html) => html });
const parse = (html) => {
	const template = doc.createElement("template");
	template.innerHTML = policy?.createHTML(html) ?? html;
	return template.content;
};

// The server writes UTC; the reader sees the own zone.
const local = (at) => at.toLocaleString("sv").slice(0, 16), two = (n) => `0${n % 60}`.slice(-2);
const passed = (ms, isAgo) => {
	const [d, h, m, s] = [864e5, 36e5, 6e4, 1e3].map((unit) => Math.max(0, ms / unit | 0));
	if (isAgo) return d > 1 ? `${d} d ago` : h ? `${h} h ago` : m ? `${m} min ago` : "just now";
	return d ? `${d} d ${h % 24} h` : h ? `${h} h ${two(m)} min` : m ? `${m} min ${two(s)} s` : `${s} s`;
};
const zoned = (within) => {
	for (const time of all(within, "time[datetime]")) {
		const { dateTime, dataset, textContent: was } = time, at = new Date(dateTime), ms = at - Date.now();
		const now = "until" in dataset ? passed(ms) : "ago" in dataset ? passed(-ms, /^j|o$/.test(was)) : root.dataset.zone === "utc" ? was : local(at);
		if (now !== was) time.textContent = now;
	}
};

// The live region: one line in five seconds.
let unsaid, saying;
const say = (text) => {
	unsaid = text || unsaid;
	if (saying || !unsaid) return;
	$("announce").textContent = unsaid;
	unsaid = "";
	saying = setTimeout(() => say(saying = 0), PAUSE);
};
const tell = (text) => Object.assign($("connection") ?? {}, { hidden: !text, textContent: text });
let since;
const away = (is) => {
	since = is && (since || local(new Date()).slice(11));
	tell(is ? `not connected since ${since}, trying` : "");
};

// Without a session the reader signs in and comes back.
const ask = async (url, part, tag = "") => {
	const answer = await fetch(url, { headers: { "cantrip-part": part, "if-none-match": tag } }), { status } = answer;
	if (status === 401) go(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}${location.hash}`);
	if (!/200|304/.test(status)) throw Error(status);
	return [parse(await answer.text()), answer.headers.get("etag")];
};

// An element takes the place of its twin; what was opened, typed or focused stays.
const sources = new WeakMap(), opened = new Map(), keyOf = (details) => details.id || one(details, "summary")?.textContent;
const fields = (of) => all(of, "input:not([type=hidden]),textarea,select"), stops = (of) => [of, ...all(of, "a,button,summary,[tabindex]"), ...fields(of)];
// A selection stays in a text that only grew.
const grew = (old, now) => {
	const [before, after] = [old, now].map((of) => one(of, ":scope > .live")?.firstChild);
	const is = before && after?.data.startsWith(before.data);
	if (is) before.appendData(after.data.slice(before.length));
	return is;
};
const act = (of) => of.form?.getAttribute("action");
const update = (old, now) => {
	const html = now.outerHTML, active = doc.activeElement, place = stops(old).indexOf(active), typed = fields(old);
	if (sources.get(old) === html || grew(old, now)) return;
	for (const part of [now, ...all(now, "details")]) part.open = opened.get(keyOf(part)) ?? part.open;
	for (const field of fields(now)) {
		const twin = typed.find((was) => was.name === field.name && act(was) === act(field) && (was.type !== "checkbox" || was.value === field.value));
		if (twin && (twin.checked !== twin.defaultChecked || twin.value !== twin.defaultValue)) [field.checked, field.value] = [twin.checked, twin.value];
	}
	zoned(now);
	old.replaceWith(now);
	sources.set(now, html);
	if (place === 0) now.tabIndex = -1;
	if (place >= 0) ($(active.id) ?? stops(now).find((stop) => active.href && stop.href === active.href) ?? stops(now)[place])?.focus(STILL);
};

const turns = () => all($("thread"), ":scope > article"), seq = (turn) => +turn.dataset.sequence, isOpen = (turn) => "open" in turn.dataset, hasEnd = () => !one($("later"), "a");
let fresh = 0;
const putTurn = (now, old) => {
	if (!isOpen(now) && (!old || isOpen(old))) say(now.dataset.say);
	// A feed starts an open turn again; its items follow and replace themselves.
	if (old) return isOpen(now) || update(old, now);
	if (now.dataset.sequence) fresh += !follows;
	if (!hasEnd()) return;
	sources.set(now, now.outerHTML);
	zoned(now);
	$("thread")?.insertBefore(now, turns().find((turn) => seq(turn) > seq(now)) ?? null);
	prune(!follows);
};
const put = (now) => {
	const old = $(now.id), into = $(now.dataset.in), waiting = now.dataset.waiting;
	if ("gone" in now.dataset) old && isOpen(old) && old.remove();
	else if (now.dataset.in === "thread") putTurn(now, old);
	// What the feed repeats of a closed turn is older.
	else if (into) isOpen(into) && (old ? update(old, now) : into.insertBefore(now, $(`${into.id}.children`)));
	else if (old && (hasEnd() || now.id !== "answer")) {
		if (now.id === "asks" && now.children.length > old.children.length) say(`Waiting for you: ${one(now, "h3")?.textContent}`);
		if (waiting) doc.title = (waiting > 0 ? `(${waiting}) ` : "") + doc.title.replace(/^\(\d+\) /, "");
		update(old, now);
	}
};

// Following ends with a move upwards; nothing else scrolls.
let follows, seenY = scrollY, seenHeight = 0;
const see = () => [seenY, seenHeight] = [scrollY, root.scrollHeight];
const jump = (top) => scrollTo({ top, behavior: "instant" });
const tellFollow = () => {
	if (!$("follow")) return;
	$("follow").hidden = isOver && follows;
	one($("follow"), "span").textContent = follows ? "Following" : `Follow${fresh ? `, ${fresh} new` : ""}`;
};
const follow = (is) => {
	if (follows !== is) fresh = 0;
	follows = is;
	tellFollow();
};
const toEnd = () => {
	// A tall message is read from its first line.
	const tall = all(doc, "#thread > article:last-of-type .said,#answer .said").map(box).filter(({ height }) => height > innerHeight - BAR);
	const y = Math.min(root.scrollHeight - innerHeight, ...tall.map(({ top }) => scrollY + top - BAR));
	if (y > scrollY + 1) jump(y);
};
const firstSeen = () => {
	const isSeen = (of) => of.id && box(of).bottom > BAR, turn = turns().find(isSeen);
	return [...(turn?.children ?? [])].find(isSeen) ?? turn;
};
const steady = (change) => {
	const anchor = follows ? null : firstSeen(), before = box(anchor).top;
	change?.();
	const moved = box(anchor && $(anchor.id)).top - before;
	if (Math.abs(moved) > 0.5) jump(scrollY + moved);
	if (follows) toEnd();
	see();
	tellFollow();
};
on(window, "scroll", () => {
	const by = scrollY - seenY;
	if (by < -1 && root.scrollHeight === seenHeight) follow(false);
	else if (by > 1 && feedUrl && hasEnd() && innerHeight + scrollY >= root.scrollHeight - 80) follow(true);
	see();
	near(by);
});
on(window, "wheel", ({ deltaY }) => {
	if (deltaY < 0) follow(false);
	near(deltaY);
});
on($("follow"), "click", () => {
	if (!hasEnd()) return go(address(""));
	follow(!follows);
	steady();
});

// Long threads: windows come and go.
const entity = location.search.match(/entity=\w+/), address = (query) => `${location.pathname}?${query}${entity ? `&${entity}` : ""}`;
const prune = (below) => {
	const list = turns(), extra = Math.ceil((list.length - TURNS) / WINDOW) * WINDOW;
	if (extra <= 0) return;
	const [edge, key, gone, stays] = below ? ["later", "after", list.slice(-extra), list.at(-extra - 1)] : ["earlier", "before", list.slice(0, extra), list[extra]];
	for (const turn of gone) turn.remove();
	$(edge).replaceChildren(Object.assign(doc.createElement("a"), { href: address(`${key}=${seq(stays)}`), textContent: "More turns" }));
	$(edge).hidden = false;
};
const load = async (edge) => {
	const link = one($(edge), "a");
	if (!link || link.asked) return;
	link.asked = true;
	const [content] = await ask(link, "window").catch(() => [link.asked = null]), next = one(content, "#thread");
	if (!next) return;
	steady(() => {
		const fresh = [...next.children].filter((turn) => !$(turn.id));
		fresh.forEach(zoned);
		$("thread")[edge === "earlier" ? "prepend" : "append"](...fresh);
		$(edge).replaceWith(one(content, `#${edge}`));
		if (edge === "later") put(one(content, "#answer"));
		prune(edge === "earlier");
	});
	// This window has the turns that were passed over.
	if (edge === "later" && hasEnd()) reconnect(next);
};
const near = (by) => {
	const edge = by < 0 ? "earlier" : "later", { top, bottom } = box($(edge));
	if (by && bottom > -NEAR && top < innerHeight + NEAR) load(edge);
};
let spineSoon;
const spineUrl = $("spine")?.dataset.src, loadSpine = async () => {
	spineSoon = 0;
	const [content] = spineUrl ? await ask(spineUrl, "spine").catch(() => []) : [], next = one(content, "#spine");
	if (next) $("spine").replaceWith(next);
};

// One feed while the page is shown.
let feed, tries = 0, isOver;
const hangUp = () => feed = feed?.close();
const connect = () => {
	if (!feedUrl || feed || isOver || doc.hidden) return;
	feed = new EventSource(`${feedUrl}${feedUrl.includes("?") ? "&" : "?"}cursor=${cursor}`);
	on(feed, "open", () => away(false));
	on(feed, "error", () => {
		away(true);
		if (feed?.readyState === 2) recover(hangUp());
	});
	on(feed, "part", (event) => {
		tries = 0;
		cursor = event.lastEventId || cursor;
		const parts = [...parse(event.data).children];
		if (parts.some((part) => part.dataset.say)) spineSoon ||= setTimeout(loadSpine, PAUSE);
		steady(() => parts.forEach(put));
	});
	on(feed, "end", () => {
		isOver = true;
		hangUp();
		tellFollow();
	});
};
const reconnect = (thread) => {
	hangUp();
	cursor = thread.dataset.cursor ?? cursor;
	isOver = "over" in thread.dataset;
	connect();
};
// No feed from this cursor: the page takes the window as it is now.
const recover = async () => {
	const wait = Math.min(3e4, 500 * 2 ** tries++);
	try {
		const [content] = await ask(location, "window"), thread = one(content, "#thread");
		steady(() => [...content.children].forEach((part) => $(part.id) && update($(part.id), part)));
		setTimeout(reconnect, wait, thread);
	} catch {
		setTimeout(() => doc.hidden || recover(), wait);
	}
};

// Lists ask for their rows while they are shown.
let rowsTag, rowsSoon;
const rowsOf = (of) => all(of, "tr[id]");
const putRows = (now) => {
	const old = $("rows"), fresh = rowsOf(now).filter((row) => !$(row.id)).length, waits = fresh > 0 && box(old).top < 0;
	const onclick = () => {
		jump(0);
		putRows(now);
	};
	Object.assign($("newer") ?? {}, { hidden: !waits, textContent: `${fresh} newer`, onclick });
	if (!waits) update(old, now);
};
const poll = async () => {
	clearTimeout(rowsSoon);
	if (doc.hidden || !$("rows")?.dataset.poll) return;
	try {
		const [content, tag] = await ask(location, "rows", rowsTag);
		rowsTag = tag ?? rowsTag;
		for (const part of [...content.children]) part.id === "rows" ? putRows(part) : put(part);
		away(false);
	} catch {
		away(true);
	}
	rowsSoon = setTimeout(poll, POLL);
};

// Copying, whole outputs, and the hidden fields of forms.
const copy = (text) => navigator.clipboard.writeText(text).then(() => say("Copied"), () => say("Not copied"));
on(doc, "click", async (event) => {
	const [details, text, program, link, whole] = ["summary", "[data-copy]", "[data-copy-text]", "[data-copy-link]", "a[data-part]"].map((what) => event.target.closest(what));
	if (details) opened.set(keyOf(details.parentNode), !details.parentNode.open);
	if (text) copy(text.dataset.copy);
	if (program) copy(one(program.closest(".code"), "pre").textContent);
	if (link) copy(link.href);
	if (link ?? whole) event.preventDefault();
	if (!whole) return;
	const [content] = await ask(whole.href, whole.dataset.part).catch(() => []);
	if (!content) return go(whole.href);
	steady(() => $(whole.dataset.into).replaceWith(content));
	one($(whole.dataset.into), "[tabindex]")?.focus(STILL);
});
const hidden = () => ({ token: one(doc, "[name=form-token]").content, key: crypto.getRandomValues(new Uint32Array(4)).join("-"), place: location.hash });
on(doc, "submit", ({ target }) => {
	const values = hidden();
	for (const field of all(target, "[type=hidden]")) field.value ||= values[field.name] ?? "";
});

// Single keys, outside of fields.
const focused = (what = "article,tr[id]") => doc.activeElement?.closest(what), current = () => focused() ?? firstSeen()?.closest("article");
const within = (what) => one(current(), what) ?? one(doc, what);
const goTo = (place) => {
	if (!place) return;
	place.tabIndex = -1;
	(one(place, ":scope > td a") ?? place).focus(STILL);
	place.scrollIntoView();
};
const step = async (by) => {
	const list = () => turns().length ? turns() : rowsOf(doc), from = focused(), at = list().indexOf(from);
	if (at < 0) return goTo(current() ?? list()[0]);
	if (!list()[at + by]) await load(by < 0 ? "earlier" : "later");
	goTo(list()[list().indexOf(from) + by]);
};
const failure = (by) => {
	const nearest = by > 0 ? 0 : -1, list = turns(), at = list.indexOf(current()), failed = list.filter((turn, place) => (turn.dataset.worst ?? "ok") !== "ok" && (place - at) * by > 0);
	if (failed.length) return goTo(failed.at(nearest));
	const edge = seq(list.at(-1 - nearest) ?? root), mark = all($("spine"), "a:not([tabindex])").filter(({ dataset }) => by > 0 ? dataset.first > edge : dataset.last < edge).at(nearest);
	mark ? go(mark.href.baseVal) : say("No further failure");
};
const decide = (value) => one(focused("section.ask") ?? one(doc, "section.ask"), `button[value=${value}]`)?.focus();
const turnDark = () => {
	const { theme: was = matchMedia("(prefers-color-scheme:dark)").matches && "dark" } = root.dataset, theme = root.dataset.theme = was === "dark" ? "light" : "dark";
	fetch("/settings", { method: "POST", redirect: "manual", body: new URLSearchParams({ ...hidden(), theme }) });
};
let number;
const typeIn = (key) => {
	if (/^\d$/.test(key)) return tell(`Go to turn ${number += key}`);
	const turn = turns().find((turn) => seq(turn) === +number);
	if (key === "Enter" && number) turn ? goTo(turn) : go(address(`at=${number}`));
	number = undefined;
	away(!!since);
};
const keys = {
	j: () => step(1), k: () => step(-1), "[": () => failure(-1), "]": () => failure(1), a: () => decide("approve"), r: () => decide("refuse"), t: turnDark,
	g: () => tell(`Go to turn ${number = ""}`), f: () => $("follow")?.click(), "?": () => go("/keys"), "/": () => one(doc, "[type=search]")?.focus(),
	y: () => copy(turns().length ? `${location.origin}/turns/${current().id}` : location.href), x: () => copy(within("[data-copy]")?.dataset.copy ?? ""),
	e: () => within("a[href*='/fork']")?.click(), d: () => within("a[data-key=d],a[href$='/files']")?.click(), u: () => all(doc, ".crumbs a").at(-1)?.click(),
	o: () => one(focused("details") ?? one(current(), "details"), "summary")?.click(),
	c: () => (all(doc, "[name=of]:checked")[1]?.form ?? say("Choose two"))?.requestSubmit(),
};
on(doc, "keydown", (event) => {
	const { key } = event, act = number === undefined ? keys[key] : typeIn, isField = event.target.matches("input:not([name=of]),textarea,select");
	if (!act || root.dataset.keys || isField || event.ctrlKey || event.metaKey || event.altKey) return;
	event.preventDefault();
	act(key);
});

// A link to a turn or an item opens it.
const hasPlace = location.search.includes("at=");
const showTarget = () => {
	const id = location.hash.slice(1).replace(":", "."), target = $(id);
	if (!id.startsWith("turn_")) return;
	if (!target) return $("thread") && !hasPlace && location.replace(`/turns/${id.split(".")[0]}`);
	if (location.hash !== `#${id}`) return location.replace(`#${id}`);
	target.open = true;
	target.scrollIntoView();
};
const wake = () => {
	if (doc.hidden) return hangUp();
	connect();
	poll();
};
on(window, "hashchange", showTarget);
on(doc, "visibilitychange", wake);

for (const part of all(doc, "#head,#side,#asks,#answer,#rows")) sources.set(part, part.outerHTML);
setInterval(zoned, 1000, doc);
zoned(doc);
if (feedUrl) {
	follow(!location.hash && hasEnd() && !hasPlace);
	steady();
}
showTarget();
loadSpine();
wake();
