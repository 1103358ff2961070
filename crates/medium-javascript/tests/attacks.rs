//! Hostile programs: each gets a typed answer, the process survives, and the next program works.

use crate::support;

use cantrip_circle::code::{Limit, ProgramLimits};
use cantrip_circle::medium::SandboxError;
use cantrip_medium_javascript::{Answer, Event, ProgramOutput};
use support::{World, at};

/// Runs a program that calls no gate, and then another one in the same sandbox.
async fn attack(world: &mut World, code: &str) -> ProgramOutput {
    let program = world.program(code);
    let sandbox = world.sandbox.take().unwrap_or_else(|| world.host.sandbox(world.spec.clone()));
    let finished = match sandbox.run(program).await {
        Ok(Event::Finished(finished)) => finished,
        Ok(Event::Call(suspended)) => panic!("{code}: {:?}", suspended.call),
        Err(lost) => panic!("{code}: {lost}"),
    };
    assert_eq!(finished.sandbox.is_none(), finished.output.rolled_back, "{code}");
    world.sandbox = finished.sandbox;
    assert_eq!(world.value("echo(20) + 1").await, "21", "{code}: the next program works");
    finished.output
}

fn short() -> ProgramLimits {
    ProgramLimits { cpu_ms: 100, ..ProgramLimits::default() }
}

#[tokio::test]
async fn long_work_in_natives_ends_at_a_limit_or_by_itself() {
    for code in [
        // Texts.
        "var a = []; for (let i = 0; i < 200; i++) a.push('x'.repeat(1e5) + (i % 7)); for (;;) a.slice().sort()",
        "var a = 'x'.repeat(2e7) + 'a', b = 'x'.repeat(2e7) + 'b'; a.charCodeAt(0); b.charCodeAt(0); for (;;) a < b",
        "var a = 'x'.repeat(1e7), b = 'x'.repeat(1e7); a.charCodeAt(0); b.charCodeAt(0); for (;;) a.localeCompare(b)",
        "var s = 'ab'.repeat(1e6); for (;;) s.split('b').join('c')",
        "for (var s = 'a'.repeat(1e6);;) s.replaceAll('a', (x) => x + x)",
        "for (var s = '\u{65}\u{301}'.repeat(1e6);;) s.normalize('NFC')",
        "for (var s = 'x'.repeat(1e7);;) s.toUpperCase()",
        "for (var s = 'x'.repeat(1e7);;) encodeURIComponent(s)",
        "for (var s = ' '.repeat(1e7);;) s.trim()",
        // Regular expressions.
        "/^(([a-z])+.)+[A-Z]([a-z])+$/.test('a'.repeat(200))",
        "/(x+x+)+y/.exec('x'.repeat(200))",
        "'a'.repeat(1e5).replace(/(a*)*b/g, '')",
        "for (var s = 'a'.repeat(1e6);;) s.match(/a/g)",
        // JSON.
        "var a = []; for (let i = 0; i < 60; i++) a = [a, a]; JSON.stringify(a)",
        "for (var t = '[' + '{\"a\":[1,2,3]},'.repeat(1e5) + '1]';;) JSON.parse(t)",
        "for (var v = Array(1e5).fill({a: 'x'.repeat(100)});;) JSON.stringify(v, null, 10)",
        "JSON.stringify(Array(1e4).fill('x'.repeat(1e6)))",
        "JSON.stringify({toJSON() { return this }, get a() { return this }})",
        // Numbers.
        "var a = 3n ** 100000n; for (;;) a * a",
        "var a = 3n ** 100000n; for (;;) a.toString()",
        // Arrays and collections.
        "for (;;) Array.from({length: 1e5}, (_, i) => -i).sort()",
        "var m = new Map(Array.from({length: 1e5}, (_, i) => [i, i])); for (;;) [...m]",
        "for (;;) new Uint8Array(1e7).fill(1).reverse().sort()",
        "var a = Array(1e6).fill(0); for (;;) a.unshift(...a.splice(0, 1000))",
        "for (var f = () => {}, a = Array(1e5).fill(1);;) f.apply(null, a.slice(0, 60000))",
        "var o = {}; for (let i = 0; i < 1e5; i++) o['k' + i] = i; for (;;) Object.keys(o).length",
        "var o = {}; for (let i = 0; i < 1e5; i++) o['k' + i] = i; for (;;) ({...o})",
        "var e = Error('x'.repeat(1e7)); for (;;) String(e)",
        "for (;;) structuredClone",
    ] {
        let mut world = World::with(short());
        let output = attack(&mut world, code).await;
        let by_itself = output.error.is_some() || output.value.is_some();
        assert!(output.limit.is_some() || by_itself, "{code}: {output:?}");
    }
}

/// The value that a length returns can change between two reads.
#[tokio::test]
async fn a_length_that_grows_after_it_was_looked_at_costs_its_program_and_no_other() {
    for code in [
        "var n = 0, a = []; Object.defineProperty(a, Symbol.isConcatSpreadable, {get() { if (n++) a.length = 2 ** 32 - 1; return true }}); [].concat(a).length",
        "Object.defineProperty(Array.prototype, 0, {get() { this.length = 2 ** 32 - 1; return 1 }, configurable: true}); var a = [,]; a.sort()",
        "var a = [1, 2, 3]; a.fill(0, {valueOf() { a.length = 2 ** 32 - 1; return 0 }})",
        "var a = [1, 2, 3]; a.splice({valueOf() { a.length = 2 ** 32 - 1; return 0 }}, 1)",
        "var a = [1, 2, 3]; a.join({toString() { a.length = 2 ** 32 - 1; return '-' }})",
        "var a = [1, 2, {toString() { a.length = 2 ** 32 - 1; return '' }}]; a.sort()",
        "var a = [3, 2, 1]; a.sort(() => { a.length = 2 ** 32 - 1; return 0 })",
        "class A extends Array { static get [Symbol.species]() { return function () { return Array(2 ** 32 - 1) } } } new A(1, 2, 3).slice(0)",
        "var a = [[1]]; a.flat({valueOf() { a.length = 2 ** 32 - 1; return 1 }})",
    ] {
        let mut world = World::with(short());
        attack(&mut world, code).await;
    }
}

#[tokio::test]
async fn natives_are_entered_again_from_inside_of_themselves() {
    for code in [
        "var n = 0, a = [{toString() { if (n++ < 3) a.sort(); a.reverse(); a.length = 1; return 'x' }}, 'b', 'a', {}]; a.sort()",
        "var a = ['b', 'a']; a.sort((x, y) => { a.splice(0, 1); a.sort(); return 1 })",
        "var a = [1, 2]; a.flatMap((x, i, all) => { all.length = 0; return all.flat() })",
        "var t = {toString() { return JSON.stringify({t: [1].concat(2)}) }}; 'a'.split(t).concat('abc'.indexOf(t))",
        "JSON.stringify({a: 1, get b() { return JSON.stringify({a: [this.a]}, ['a']) }}, ['a', 'b'])",
        "var p = new Proxy([1, 2, 3], {get(t, k) { [3, 1].sort(); 'x'.repeat(70000).split('x'); return t[k] }}); [p, p].flat()",
        "console.log({get a() { return 1 }}, new Proxy({}, {ownKeys() { console.log('inner'); return [] }}))",
        "var m = new Map([[1, 2]]); m.forEach((v, k) => { m.delete(k); console.log(m) })",
        "console.log(new Map([[new Proxy({}, {getPrototypeOf() { console.log(new Set([1, 2])); return null }}), 1], [2, 3]]))",
        "new Date({valueOf: () => new Date({valueOf: () => Date.now()}).getTime()}).getTime()",
        "Object.defineProperties(globalThis, {x: {get value() { Object.defineProperty(globalThis, 'y', {value: 1, configurable: true}); return 2 }, configurable: true}}); x + y",
        "Promise.all([1].map(async (x) => { await Promise.all([x]); return new Promise((r) => queueMicrotask(() => r(x))) }))",
        "Array.prototype[Symbol.iterator] = null; String.prototype.slice = null; Object.prototype.get = 1; [[1], 2].flat().concat(['b', 'a'].sort())",
        "Function.prototype.call = Function.prototype.apply = null; Reflect.apply = null; console.log([1].flatMap((x) => [x, x]), new Date(0))",
        "Object.prototype.toJSON = () => 1; JSON.stringify({a: 1})",
        "Object.defineProperty(Object.prototype, 'text', {set() { throw 1 }, get() { throw 2 }, configurable: true}); [{}, 'a'].sort(); console.log({a: 1}); 1",
        "Object.defineProperty(Array.prototype, 0, {set() { throw 1 }, get() { return 7 }, configurable: true}); console.log([,], ['b'].concat([[1]].flat()))",
    ] {
        let mut world = World::with(short());
        let output = attack(&mut world, code).await;
        assert_eq!((output.error, output.limit), (None, None), "{code}");
    }
}

#[tokio::test]
async fn gates_are_called_from_inside_of_natives() {
    for (code, value, calls) in [
        ("['b', 'a'].sort((x, y) => echo(x < y ? -1 : 1))", "[\"a\", \"b\"]", 1),
        ("[{toString: () => echo('b')}, {toString: () => echo('a')}].sort().map(String)", "[\"a\", \"b\"]", 4),
        ("[1, 2].flatMap((x) => [echo(x), x])", "[1, 1, 2, 2]", 2),
        ("'aXb'.replace('X', () => echo('-'))", "\"a-b\"", 1),
        ("JSON.stringify({toJSON: () => echo('j')})", "\"\\\"j\\\"\"", 1),
        ("[].concat({length: 1, 0: 5, get [Symbol.isConcatSpreadable]() { return echo(false) }}).length", "1", 2),
        ("echo(new Proxy([1, [2]], {}))", "[1, [2]]", 1),
        ("[].slice.call({get length() { return echo(2) }, 0: 1})", "[1, <empty>]", 1),
        ("'x'.normalize({toString: () => echo('NFC')})", "\"x\"", 1),
        ("`${new Date({valueOf: () => echo(0)}).getTime()}`", "\"0\"", 1),
        ("new Promise((r) => r(echo(3)))", "3", 1),
        ("String(new Proxy({}, {get: (t, k) => k === 'toString' ? () => echo('p') : undefined}))", "\"p\"", 1),
        (
            "new Proxy({}, {ownKeys: () => echo(['k']), getOwnPropertyDescriptor: () => ({value: echo(1), enumerable: true, configurable: true})})",
            "{k: 1}",
            2,
        ),
    ] {
        let mut world = World::new();
        assert_eq!(world.value(code).await, value, "{code}");
        assert_eq!(world.calls.len(), calls, "{code}: {:?}", world.calls);
        assert_eq!(world.value("echo(20) + 1").await, "21", "{code}: the next program works");
    }
}

#[tokio::test]
async fn whatever_is_thrown_is_told() {
    for (code, name, message) in [
        ("throw 1", "Uncaught", "1"),
        ("throw undefined", "Uncaught", "undefined"),
        ("throw null", "Uncaught", "null"),
        ("throw Symbol('s')", "Uncaught", "Symbol(s)"),
        ("throw -0", "Uncaught", "-0"),
        ("throw 10n", "Uncaught", "10n"),
        ("throw {a: [1]}", "Uncaught", "{a: [1]}"),
        ("throw () => 1", "Uncaught", "[Function]"),
        ("Promise.reject({a: 1}); await 0", "Uncaught", "{a: 1}"),
        ("throw Object.create(Error.prototype)", "Error", ""),
        ("throw Object.assign(new Error('m'), {name: {toString: () => 'N'}})", "N", "m"),
        (
            "throw Object.assign(new Error('m'), {name: {toString() { throw 2 }}})",
            "Uncaught",
            "what was thrown cannot be shown",
        ),
        ("throw new Proxy(new Error('m'), {get() { throw 3 }})", "Uncaught", "what was thrown cannot be shown"),
        ("throw new Proxy({}, {getPrototypeOf() { throw 3 }})", "Uncaught", "what was thrown cannot be shown"),
        ("throw new Proxy([1], {})", "Uncaught", "[1]"),
        ("throw new (class extends TypeError {})('sub')", "TypeError", "sub"),
        ("throw '\\ud800'", "Uncaught", "\"\\ud800\""),
    ] {
        let mut world = World::new();
        let output = world.run(code).await;
        let error = output.error.unwrap_or_else(|| panic!("{code}: no error"));
        assert_eq!((error.name.as_str(), error.message.as_str()), (name, message), "{code}");
        assert_eq!(world.value("echo(20) + 1").await, "21", "{code}: the next program works");
    }
}

/// Tests a cycle of prototypes, made with a proxy whose trap is a native function.
#[tokio::test]
async fn a_chain_of_prototypes_without_an_end_is_left() {
    let circle = "var t = {}, p = new Proxy(t, {getPrototypeOf: Object}); Object.setPrototypeOf(t, p);";
    for code in ["throw t", "console.log(t)", "t", "t instanceof Error"] {
        let mut world = World::with(short());
        let output = attack(&mut world, &format!("{circle} {code}")).await;
        assert_eq!(output.limit, Some(Limit::Cpu), "{code}: {output:?}");
    }
}

/// The engine does not poll while it formats a large integer in decimal, which takes time proportional to the square of
/// its length.
#[tokio::test]
async fn a_thread_that_does_not_come_back_costs_the_program_it_is_in_and_nobody_else() {
    let endless = "for (const a = 2n ** 1000000n;;) console.log(`${a}${a}${a}${a}${a}${a}${a}${a}`.length)";
    let mut world = World::with(ProgramLimits { cpu_ms: 60_000, ..ProgramLimits::default() });
    let mut idle = World::with(ProgramLimits::default());
    idle.sandbox = Some(world.host.sandbox(idle.spec.clone()));
    assert_eq!(idle.value("var x = 1; x").await, "1");
    let mut waiting = World::with(ProgramLimits::default());
    let program = waiting.program("echo(1)");
    let sandbox = world.host.sandbox(waiting.spec.clone());
    let Ok(Event::Call(suspended)) = sandbox.run(program).await else { panic!("a call") };

    let program = world.program(endless);
    let stuck = world.sandbox.take().expect("a sandbox").run(program);
    let answer = async {
        // The thread handles its commands in order, so the stuck program must be sent first.
        tokio::task::yield_now().await;
        suspended.answer(Answer::Value(5.into()), at(0)).await
    };
    let (stuck, answered) = tokio::join!(stuck, answer);
    let Ok(Event::Finished(finished)) = stuck else { panic!("an end: {stuck:?}") };
    assert_eq!((finished.output.limit, finished.output.rolled_back), (Some(Limit::Cpu), true));
    assert!(finished.sandbox.is_none());
    assert!(matches!(answered, Err(SandboxError::Gone)), "{answered:?}");
    let program = idle.program("x");
    let asked = idle.sandbox.take().expect("a sandbox").run(program).await;
    assert!(matches!(asked, Err(SandboxError::Gone)), "{asked:?}");
    assert_eq!(world.value("echo(20) + 1").await, "21", "another thread serves");
}
