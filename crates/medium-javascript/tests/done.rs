//! `done` stops a program at the call, and only the host can decide that it did.

use crate::support;

use serde_json::json;
use support::World;

/// Programs that call `done` and then try to continue.
const SWALLOWERS: &[(&str, &str)] = &[
    ("try and finally", "try { done(1) } catch { after() } finally { after() } after()"),
    ("a catching loop", "for (;;) { try { done(1) } catch { after() } }"),
    ("a finally that returns", "(() => { try { done(1) } finally { return after() } })(); after()"),
    ("async function", "async function f() { try { done(1) } finally { after() } } f().finally(after); after()"),
    ("top-level await", "await (async () => { done(1) })().catch(after); after()"),
    (
        "then",
        "Promise.resolve().then(() => done(1)).then(after, after).finally(after); await null; await null; after()",
    ),
    ("map callback", "[1, 2].map((x) => { after.n = x; if (x == 1) done(1); after() }); after()"),
    ("promise constructor", "new Promise(() => done(1)).catch(after); after()"),
    ("native promise constructor", "new (Promise.resolve().constructor)(() => done(1)).catch(after); after()"),
    ("promise subclass", "class P extends Promise {}; new P(() => done(1)).catch(after); after()"),
    ("all", "Promise.all({[Symbol.iterator]() { done(1) }}).catch(after); after()"),
    ("allSettled", "Promise.allSettled({[Symbol.iterator]() { done(1) }}).then(after); after()"),
    ("any", "Promise.any({[Symbol.iterator]() { done(1) }}).catch(after); after()"),
    ("race", "Promise.race([{then() { done(1) }}]).catch(after); await 0; await 0; await 0; after()"),
    ("resolve with a thenable", "Promise.resolve({get then() { done(1) }}).catch(after); after()"),
    ("thenable job", "await {then() { done(1) }}; after()"),
    (
        "async generator",
        "const g = (async function* () { try { done(1) } finally { after() } })(); g.next().catch(after); after()",
    ),
    ("for await", "for await (const x of (async function* () { done(1) })()) after(); after()"),
    ("sort callback", "[2, 1].sort(() => { try { done(1) } finally { after() } }); after()"),
    ("replace callback", "'a'.replace(/a/, () => { done(1) }); after()"),
    ("getter", "({get x() { done(1) }}).x; after()"),
    (
        "setter of every error's message",
        "Object.defineProperty(Error.prototype, 'message', {get: after, set: after, configurable: true}); done(1); after()",
    ),
    ("proxy trap", "try { new Proxy({}, {get() { done(1) }}).x } catch {} after()"),
    ("toString", "`${{toString() { done(1) }}}`; after()"),
    (
        "iterator return",
        "for (const x of {[Symbol.iterator]: () => ({next: () => ({value: 1}), return() { done(1) }})}) break; after()",
    ),
    (
        "iterator return under a throw",
        "try { for (const x of {[Symbol.iterator]: () => ({next: () => ({value: 1}), return() { done(1) }})}) throw 1 } catch {} after()",
    ),
    ("toJSON of an argument", "try { echo({toJSON() { done(1) }}) } catch {} after()"),
    ("getter of done's own argument", "try { done({get answer() { done(1) }}) } catch {} after()"),
    ("JSON.stringify", "try { JSON.stringify({toJSON() { done(1) }}) } catch {} after()"),
    ("eval", "try { eval('done(1)') } catch {} after()"),
    ("Function", "try { new Function('done(1)')() } catch {} after()"),
    ("queueMicrotask", "queueMicrotask(() => done(1)); queueMicrotask(after); await 0; await 0; after()"),
    ("constructor", "class A { constructor() { done(1) } } try { new A() } catch {} after()"),
    ("static block", "class A { static { try { done(1) } finally { after() } } } after()"),
    ("generator", "for (const x of (function* () { try { done(1) } finally { after() } })()) {} after()"),
    ("tagged template", "((...x) => { done(1) })`a`; after()"),
    ("Array.from", "try { Array.from({length: 1}, () => done(1)) } catch {} after()"),
    (
        "Array.fromAsync",
        "if (Array.fromAsync) Array.fromAsync([1], () => done(1)).catch(after); else done(1); await 0; await 0; await 0; await 0; after()",
    ),
    ("Reflect.apply", "try { Reflect.apply(done, null, [1]) } catch {} after()"),
    ("bound", "try { done.bind(null, 1)() } catch {} after()"),
    (
        "has trap under slice",
        "try { [].slice.call(new Proxy({length: 2}, {has() { done(1) }})) } catch { after() } after()",
    ),
    ("length under join", "try { [].join.call({get length() { done(1) }}) } catch { after() } after()"),
    ("concat", "try { [].concat({get [Symbol.isConcatSpreadable]() { done(1) }}) } catch { after() } after()"),
    ("flat", "try { [new Proxy([1], {get() { done(1) }})].flat() } catch { after() } after()"),
    ("flatMap", "try { [1].flatMap(() => done(1)) } catch { after() } after()"),
    ("sort by texts", "try { [{toString() { done(1) }}, {}].sort() } catch { after() } after()"),
    ("toSorted by texts", "try { [{toString() { done(1) }}, {}].toSorted() } catch { after() } after()"),
    ("stringify by a list", "try { JSON.stringify({get a() { done(1) }}, ['a']) } catch { after() } after()"),
    ("split", "try { 'a'.split({get [Symbol.split]() { done(1) }}) } catch { after() } after()"),
    ("indexOf", "try { 'a'.indexOf({toString() { done(1) }}) } catch { after() } after()"),
    ("normalize", "try { 'a'.normalize({toString() { done(1) }}) } catch { after() } after()"),
    ("String.raw", "try { String.raw({get raw() { done(1) }}) } catch { after() } after()"),
    (
        "a key",
        "try { Object.defineProperty(globalThis, {toString() { done(1) }}, {value: 1}) } catch { after() } after()",
    ),
    (
        "defineProperties",
        "try { Object.defineProperties(globalThis, {get x() { done(1) }}) } catch { after() } after()",
    ),
    ("drop", "try { [].values().drop({valueOf() { done(1) }}) } catch { after() } after()"),
    ("a printed proxy", "try { console.log(new Proxy({}, {ownKeys() { done(1) }})) } catch { after() } after()"),
    ("a thrown error that lies", "throw Object.defineProperty(new Error(), 'message', {get() { done(1) }})"),
    ("a rejection that lies", "await Promise.reject(Object.defineProperty(new Error(), 'name', {get() { done(1) }}))"),
    ("new Date", "try { new Date({valueOf() { done(1) }}) } catch { after() } after()"),
    ("Date.parse", "try { Date.parse({toString() { done(1) }}) } catch { after() } after()"),
    ("submit_answer", "try { submit_answer(1) } finally { after() }"),
];

#[tokio::test]
async fn nothing_that_swallows_errors_lets_a_program_go_on_after_done() {
    for (name, code) in SWALLOWERS {
        let mut world = World::new();
        let program = format!(
            "var after = () => {{ console.log('after'); echo('after'); done(2) }};
             Promise.resolve().then(() => {{}}).then(() => {{}});
             {code}
             console.log('end'); echo('end'); done(3)"
        );
        let output = world.run(&program).await;
        assert!(output.stopped, "{name}: {output:?}");
        assert_eq!((output.console.as_str(), output.error.is_none(), output.limit), ("", true, None), "{name}");
        assert_eq!(world.answer, Some(json!(1)), "{name}");
        assert_eq!(world.calls.len(), 1, "{name}: {:?}", world.calls);
        assert_eq!(world.value("echo(7) + 1").await, "8", "{name}: the next program works");
    }
}

#[tokio::test]
async fn jobs_that_were_queued_before_done_never_run() {
    let mut world = World::new();
    let output = world
        .run(
            "var ran = 0; for (let i = 0; i < 50; i++) Promise.resolve().then(() => { ran++; echo(i) });
              (async () => { await 0; ran++; echo('async') })();
              done('first')",
        )
        .await;
    assert!(output.stopped);
    assert_eq!(world.value("await 0; await 0; ran").await, "0");
    assert_eq!(world.gates_called(), ["done"]);
}

#[tokio::test]
async fn variables_keep_the_values_they_had_at_done() {
    let mut world = World::new();
    world.run("var x = 1; let y = 2; x = 5; done(x); x = 6; y = 7").await;
    assert_eq!(world.value("[x, y]").await, "[5, 2]");
}

#[tokio::test]
async fn a_promise_wrapped_around_done_leaves_no_later_assignment() {
    let mut world = World::new();
    for code in [
        "new Promise(() => done(1)); x = 1",
        "Promise.all({[Symbol.iterator]() { done(1) }}); x = 1",
        "(async function* () { done(1) })().next(); x = 1",
        "Promise.try(() => done(1)); x = 1",
    ] {
        world.run("var x = 0").await;
        assert!(world.run(code).await.stopped, "{code}");
        assert_eq!(world.value("x").await, "0", "{code}");
    }
}

#[tokio::test]
async fn nothing_an_entity_throws_or_returns_ends_its_cast() {
    for forged in [
        "throw new Error('ended')",
        "throw {name: 'done', message: 'ended', answer: 1}",
        "throw Object.assign(new GateError('ended'), {name: 'InternalError'})",
        "throw new (class Done extends Error {})('interrupted')",
        "try { null.x } catch (e) { e.message = 'interrupted'; e.name = 'InternalError'; throw e }",
        "Promise.reject(new Error('interrupted'))",
        "var e = new Error('x'); e.uncatchable = true; throw e",
        "globalThis.done = () => 'mine'; done(1)",
        "function done(x) { return x } done(1)",
        "var done = (x) => x; done(1)",
        "eval('var done = (x) => x'); done(1)",
        "(function () { this.done = 1 })()",
        "const done = (x) => x; done(1)",
        "class done {}",
        "delete globalThis.done",
    ] {
        let mut world = World::new();
        let output = world.run(forged).await;
        assert!(!output.stopped, "{forged}: {output:?}");
        assert_eq!(world.answer, None, "{forged}");
        assert_eq!(output.limit, None, "{forged}");
        assert!(world.run("done(2)").await.stopped, "{forged}: the gate is back in the next program");
        assert_eq!(world.answer, Some(json!(2)), "{forged}");
    }
}

#[tokio::test]
async fn no_trick_with_properties_takes_a_gate_from_later_programs() {
    for trick in [
        "Object.defineProperty(globalThis, 'done', {value: 1, writable: false, configurable: false})",
        "Reflect.defineProperty(globalThis, 'done', {get() { return 1 }, configurable: false})",
        "Object.defineProperties(globalThis, {done: {value: 1, configurable: false}})",
        "Object.freeze(globalThis)",
        "Object.seal(globalThis)",
        "Object.preventExtensions(globalThis); delete globalThis.done",
        "Object.freeze(new Proxy(globalThis, {}))",
        "Reflect.defineProperty(Proxy.revocable(globalThis, {}).proxy, 'done', {value: 1})",
        "globalThis.__defineGetter__('done', () => 1)",
        "function done() {} Object.defineProperty(globalThis, 'done', {writable: false})",
        "Object.defineProperty(globalThis, {toString() { return 'done' }}, {value: 1, configurable: false})",
        "Object.defineProperty(Object.prototype, 'done', {value: 1, configurable: false, writable: false})",
        "Object.setPrototypeOf(globalThis, new (function () {}))",
        "Reflect.getOwnPropertyDescriptor = Reflect.defineProperty = Reflect.set = Array.prototype[Symbol.iterator] = null",
        "Object.prototype.get = () => 1; Object.prototype.configurable = false",
        "Object.prototype.then = (resolve) => resolve(1)",
        "Function.prototype.call = Function.prototype.apply = Function.prototype.bind = null",
    ] {
        let mut world = World::new();
        world.run(trick).await;
        assert!(world.run("done(2)").await.stopped, "{trick}");
        assert_eq!(world.answer, Some(json!(2)), "{trick}");
    }
}

#[tokio::test]
async fn a_malformed_done_ends_nothing() {
    let mut world = World::new();
    let output = world.run("var caught; try { done() } catch (e) { caught = e.code } caught").await;
    assert_eq!(output.value.as_deref(), Some("\"WA-VAL-I-002\""));
    assert!(!output.stopped);
    let output = world.run("done(() => 1)").await;
    assert_eq!(output.error.map(|error| error.name).as_deref(), Some("GateError"));
}
