//! The limits of a program: the behaviour at each limit, and that other programs are not affected.

use crate::support;

use cantrip_circle::code::{Limit, ProgramLimits};
use cantrip_medium_javascript::{Event, Fault, ProgramOutput};
use support::{World, at};

/// Limits that are small enough to be reached at once.
fn tight() -> ProgramLimits {
    ProgramLimits { memory_bytes: 8 << 20, cpu_ms: 200, wall_ms: 20_000, ..ProgramLimits::default() }
}

async fn stopped_at(limits: ProgramLimits, code: &str) -> ProgramOutput {
    let mut world = World::with(limits);
    let (output, kept) = world.finish(&format!("console.log('before'); {code}")).await;
    assert_eq!(output.console, "before\n", "{code}");
    assert_eq!((output.error.is_none(), output.value.is_none(), output.stopped), (true, true, false), "{code}");
    assert_eq!(output.rolled_back, !kept, "{code}");
    assert!(world.run("done(1)").await.stopped, "{code}: a rebuilt sandbox works");
    output
}

#[tokio::test]
async fn an_endless_program_is_stopped_by_its_processor_time_whatever_it_catches() {
    for code in [
        "while (true) {}",
        "for (;;) { try { for (;;); } catch {} finally { for (;;); } }",
        "for (;;) { try { new Promise(() => { for (;;); }) } catch {} }",
        "var P = Promise.resolve().constructor; for (;;) { try { new P(() => { for (;;); }) } catch {} }",
        "(function f() { Promise.resolve().then(f) })()",
        "(async () => { for (;;) await 0 })()",
        "(async function* () { for (;;) yield 1 })().next(); for await (const x of (async function* () { for (;;) yield 1 })());",
        "[1, 2].sort(() => { for (;;); })",
        "var o = new Proxy({}, {get() { for (;;); }}); o.x",
        "/(a+)+$/.test('a'.repeat(64) + 'b')",
        "var f = function f() { try { f() } finally { f() } }; f()",
        "eval('for (;;);')",
        "new Function('for (;;);')()",
        "JSON.stringify({toJSON() { for (;;); }})",
        "Object.defineProperty(Error, 'prepareStackTrace', {value() { for (;;); }}); for (;;) { try { null.x } catch {} }",
        "[].includes.call({length: 2 ** 53 - 1}, 1)",
        "for (;;) 'x'.repeat(1e6)",
        "var m = new Map(); for (let i = 0; ; i++) m.set(i % 1000, i)",
    ] {
        let output = stopped_at(tight(), code).await;
        assert_eq!(output.limit, Some(Limit::Cpu), "{code}");
        assert!(output.rolled_back, "{code}");
    }
}

#[tokio::test]
async fn a_program_that_waits_too_long_for_its_turns_is_stopped_by_wall_time() {
    let limits = ProgramLimits { cpu_ms: 60_000, wall_ms: 50, ..tight() };
    assert_eq!(stopped_at(limits, "for (;;);").await.limit, Some(Limit::Wall));
}

#[tokio::test]
async fn memory_that_runs_out_stops_a_program_even_if_it_catches_the_error() {
    for code in [
        "var a = []; for (;;) a.push({x: [1, 2, 3]})",
        "var s = 'x'; for (;;) { s += s; s.charCodeAt(0) }",
        "var a = []; for (;;) { try { a.push(new Array(1000).fill({})) } catch {} }",
        "var a = []; for (;;) { try { a.push('y'.repeat(100000) + a.length) } catch { a.length = 0 } }",
        "try { new ArrayBuffer(1e9) } catch {} 1",
        "try { 'x'.repeat(5e8) } catch {} finally { for (;;); }",
        "var a = {}; for (let i = 0; ; i++) { try { a['k' + i] = a } catch {} }",
        "var a = 1n; for (;;) a = [a, a, a]",
        "async function f(x) { await null; await f([x]) } await f()",
        "var f = () => { var p = new Promise((r) => f.r = r); return p.then(f) }; for (var all = [];;) all.push(f())",
        "new Uint8Array(5e7); JSON.parse('[' + '1,'.repeat(5e6) + '1]')",
        "Array.from({length: 1e9}, (_, i) => i)",
    ] {
        let output = stopped_at(ProgramLimits { cpu_ms: 20_000, ..tight() }, code).await;
        assert_eq!(output.limit, Some(Limit::Memory), "{code}");
        assert!(output.rolled_back, "{code}");
    }
}

#[tokio::test]
async fn recursion_that_is_too_deep_is_an_error_the_program_can_catch() {
    let mut world = World::new();
    let output = world.run("var x = 1;\nfunction f() { return f() + 1 }\nf()").await;
    let error = output.error.expect("an error");
    assert_eq!((error.fault, error.name.as_str()), (Fault::Threw, "RangeError"));
    assert_eq!(output.limit, Some(Limit::Stack));
    assert!(!output.rolled_back);
    assert_eq!(world.value("x").await, "1", "the sandbox is the same");
    assert_eq!(world.value("try { f() } catch { x = 2 } x").await, "2");
    for code in [
        "var d = []; for (let i = 0; i < 1e5; i++) d = [d]; JSON.stringify(d)",
        "JSON.parse('['.repeat(1e5))",
        "new RegExp('('.repeat(1e5) + ')'.repeat(1e5))",
        "var o = {toString() { return `${o}` }}; `${o}`",
        "var p = new Proxy({}, {get: (t, k, r) => r[k]}); p.x",
        "class A { constructor() { new A() } } new A()",
        "var s = 'x'; for (let i = 0; i < 14; i++) s = s.replace(/x/g, '(x)'); eval('('.repeat(1e5))",
        "var g = function* () { yield* g() }; [...g()]",
        "[1].map(function f() { return [1].map(f) })",
        "echo((function deep(n) { return n ? [deep(n - 1)] : 1 })(60))",
        "var n = 0; (function f() { n++; f(echo(1)) })()",
    ] {
        let output = world.run(code).await;
        assert!(!output.rolled_back, "{code}: {output:?}");
        assert_eq!(world.value("x").await, "2", "{code}");
    }
}

#[tokio::test]
async fn a_program_nested_too_deeply_to_be_read_is_an_error_and_no_crash() {
    let mut world = World::new();
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("{", "}"),
        ("!", "1"),
        ("-", ""),
        ("a=>", "1"),
        ("a=", "1"),
        ("`${", "}`"),
        ("if(1)", ";"),
        ("x:", ";"),
        ("new ", "A"),
        ("await ", "1"),
        ("f(", ")"),
        ("function(){", "}"),
        ("a?b:", "c"),
        ("a**", "a"),
        ("typeof ", "1"),
        ("({a:", "})"),
        ("else if(1);", ""),
    ] {
        for count in [100, 1_000, 10_000, 60_000] {
            let count = count.min(200_000 / (open.len() + close.len()));
            let source = format!("{}1{}", open.repeat(count), close.repeat(count));
            let output = world.run(&source).await;
            assert!(!output.rolled_back || output.limit == Some(Limit::Memory), "{open} {count} {output:?}");
        }
    }
    assert_eq!(world.value("1 + 1").await, "2");
}

#[tokio::test]
async fn output_is_cut_where_it_is_shown_and_stopped_at_its_hard_cap() {
    let mut world = World::new();
    let output = world.run("var x = 1; for (let i = 0; i < 1000; i++) console.log('y'.repeat(99)); x = 2; x").await;
    assert_eq!((output.console.len(), output.cut, output.limit), (16 << 10, 100_000 - (16 << 10) + 1, None));
    assert_eq!(output.value.as_deref(), Some(""), "the value has no room left and is counted as cut");
    assert_eq!(world.value("x").await, "2");

    for code in [
        "for (;;) console.log('z'.repeat(1000))",
        "try { for (;;) console.log('z'.repeat(1e5)) } catch {} finally { console.log('after') }",
        "console.log('z'.repeat(3e7)); x = 4",
        "for (let s = 'z'.repeat(3e7);;) console.log(s, s, s, s)",
        "console.log(Array(3e5).fill('zzzz'), Array(3e5).fill({a: 1})); for (;;) console.log('z')",
    ] {
        let mut world = World::new();
        world.run("var x = 3").await;
        let output = world.run(code).await;
        assert_eq!((output.limit, output.rolled_back), (Some(Limit::Output), false), "{code}");
        assert!(output.console.len() <= 16 << 10 && output.console.len() as u64 + output.cut <= 1 << 20, "{code}");
        assert_eq!(world.value("x").await, "3", "{code}: the sandbox is the same");
    }
}

#[tokio::test]
async fn a_hundred_megabytes_of_output_never_exist() {
    let output = World::new().run("for (let i = 0; i < 100; i++) console.log('x'.repeat(1e6))").await;
    assert_eq!(output.limit, Some(Limit::Output));
    let output = World::new().run("console.log('x'.repeat(1e8))").await;
    assert_eq!(output.limit, Some(Limit::Memory));
}

#[tokio::test]
async fn no_length_however_large_or_false_keeps_a_native_busy() {
    let mut world = World::with(tight());
    for code in [
        "[].reverse.call({length: 2 ** 53 - 1})",
        "[].copyWithin.call({length: 2 ** 53 - 1}, 0, 1)",
        "[].fill.call({length: 2 ** 53 - 1}, 1)",
        "[].join.call({length: 2 ** 32})",
        "var n = 0; [].reverse.call({get length() { return n++ ? 2 ** 53 - 1 : 1 }})",
        "[].reverse.call(new Proxy([], {get: (t, k) => k === 'length' ? 2 ** 53 - 1 : t[k]}))",
        "Array(2 ** 32 - 1).join('x')",
        "Array(2 ** 32 - 1).toString()",
        "Array(2 ** 32 - 1).sort()",
        "Array(2 ** 32 - 1).splice(0, 2 ** 31)",
        "Array(2 ** 32 - 1).slice(1)",
        "Array(2 ** 32 - 1).shift()",
        "[Array(2 ** 32 - 1)].flat()",
        "[1].flatMap(() => Array(2 ** 32 - 1))",
        "[].concat(Array(2 ** 32 - 1))",
    ] {
        let (output, kept) = world.finish(code).await;
        assert!(kept, "{code}: {output:?}");
        let name = output.error.map(|error| error.name);
        assert!(matches!(name.as_deref(), Some("RangeError" | "TypeError")), "{code}: {name:?}");
    }
    // These programs have to complete, also on a slow machine.
    let mut world = World::with(ProgramLimits { cpu_ms: 10_000, wall_ms: 60_000, ..tight() });
    for (code, value) in [
        // Searches that would take the engine hours end in the time that it takes to read both texts.
        ("'a'.repeat(3e6).indexOf('a'.repeat(1e6) + 'b')", "-1"),
        ("('a'.repeat(3e6) + 'b').indexOf('a'.repeat(1e6) + 'b')", "2000000"),
        ("('a'.repeat(1e6) + '\u{e9}a').lastIndexOf('a'.repeat(5e5), 5e5 + 1)", "500000"),
        ("('\u{e9}'.repeat(9) + 'a'.repeat(1e6)).indexOf('a'.repeat(5e5), 11)", "11"),
        ("'a'.repeat(3e6).split({toString: () => 'a'.repeat(1e6) + 'b'}).length", "1"),
        ("'a'.repeat(3e6).replaceAll('a'.repeat(1e6), '$&b').length", "3000003"),
        ("[3, 1, 2].sort().reverse().concat([0], 9).slice(1).join('-')", "\"2-1-0-9\""),
        ("[].slice.call('abc', 1)", "[\"b\", \"c\"]"),
        ("(function () { return [].join.call(arguments) })(1, 2)", "\"1,2\""),
        ("[[1, [2]], 3, , 4].flat(Infinity)", "[1, 2, 3, 4]"),
        ("JSON.stringify([1, 2].flatMap((x, i) => [x, [i]]))", "\"[1,[0],2,[1]]\""),
        ("Object.keys([[1], 2].flat())", "[\"0\", \"1\"]"),
        (
            "['a-b'.split('-'), 'aXbX'.replace('X', '$&$&'), 'aXb'.replaceAll('X', () => 1), 'abc'.includes('bc')]",
            "[[\"a\", \"b\"], \"aXXbX\", \"a1b\", true]",
        ),
        (
            "['a1b2'.split(/\\d/), 'a1'.replace(/\\d/, (d) => +d + 1), 'abc'.indexOf(), 'undefined'.indexOf(undefined)]",
            "[[\"a\", \"b\", \"\"], \"a2\", -1, 0]",
        ),
        ("[...'abc'].splice(1, 1).concat([].shift(), [5].unshift(4))", "[\"b\", undefined, 2]"),
        ("new Uint8Array([3, 1]).sort().join()", "\"1,3\""),
    ] {
        assert_eq!(world.value(code).await, value, "{code}");
    }
}

#[tokio::test]
async fn a_busy_program_leaves_its_neighbours_their_turns() {
    let mut hog = World::with(ProgramLimits { cpu_ms: 60_000, wall_ms: 600_000, ..ProgramLimits::default() });
    let host = hog.host.clone();
    let program = hog.program("for (;;);");
    let sandbox = hog.sandbox.take().expect("a sandbox");
    let mut busy = Box::pin(sandbox.run(program));
    let mut neighbour = World::new();
    neighbour.sandbox = Some(host.sandbox(neighbour.spec.clone()));
    let work = async {
        for turn in 0..20 {
            assert_eq!(neighbour.value(&format!("echo({turn})")).await, turn.to_string());
        }
    };
    tokio::select! {
        biased;
        _ = &mut busy => panic!("an endless program has ended"),
        () = work => {}
    }
    drop(busy);
}

#[tokio::test]
async fn time_in_a_gate_is_not_the_programs_time() {
    let mut world = World::with(ProgramLimits { wall_ms: 200, ..ProgramLimits::default() });
    let program = world.program("echo(1)");
    let Event::Call(suspended) = world.sandbox.take().expect("idle").run(program).await.expect("stands") else {
        panic!("a call")
    };
    // Another program on the same thread uses more wall time than this one has.
    let mut other = World::with(ProgramLimits { cpu_ms: 300, ..ProgramLimits::default() });
    other.sandbox = Some(world.host.sandbox(other.spec.clone()));
    assert_eq!(other.run("for (;;);").await.limit, Some(Limit::Cpu));
    let event = suspended.answer(cantrip_medium_javascript::Answer::Value(5.into()), at(world.now)).await;
    let Ok(Event::Finished(finished)) = event else { panic!("an end") };
    assert_eq!((finished.output.value.as_deref(), finished.output.limit), (Some("5"), None));
}
