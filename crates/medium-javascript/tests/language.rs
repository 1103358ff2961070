//! The behaviour of programs: which names persist, the value, the content of errors, and what a program cannot see.

use crate::support;

use cantrip_medium_javascript::{Error, Fault, SourceLocation};
use serde_json::json;
use support::World;

#[tokio::test]
async fn top_level_names_persist_and_may_be_declared_again() {
    let mut world = World::new();
    world.run("var a = 1; let b = 2; const c = 3; function d() { return 4 } class E { static e = 5 }").await;
    assert_eq!(world.value("[a, b, c, d(), E.e]").await, "[1, 2, 3, 4, 5]");
    world.run("let a = 10; const b = 20; class c { static x = 30 } const d = 40; let E = 50").await;
    assert_eq!(world.value("[a, b, c.x, d, E]").await, "[10, 20, 30, 40, 50]");
    world.run("function a() { return 1 } let b; var c; const {d, E: [e]} = {d: 2, E: [3]}").await;
    assert_eq!(world.value("[a(), b, c.x, d, e]").await, "[1, undefined, 30, 2, 3]");
}

#[tokio::test]
async fn a_name_whose_initialiser_threw_is_not_buried() {
    let mut world = World::new();
    for declaration in ["let a = boom()", "const a = boom()", "class a extends boom() {}", "const {a} = null"] {
        assert!(world.run(declaration).await.error.is_some(), "{declaration}");
        assert_eq!(world.value("typeof a").await, "\"undefined\"", "{declaration}");
        assert_eq!(world.value("const a = 7; a").await, "7", "{declaration}");
        world.run("a = undefined").await;
    }
}

#[tokio::test]
async fn declarations_in_blocks_loops_and_text_are_untouched() {
    let mut world = World::new();
    assert_eq!(
        world
            .value(
                "var fs = []; for (let i = 0; i < 3; i++) { const j = i; fs.push(() => i * 10 + j) }
                 { let hidden = 1; class Hidden {} }
                 var t = `let x = ${(() => { let y = 2; return y })()} const`, r = /let [x]/g.source;
                 [fs.map((f) => f()), typeof hidden, typeof Hidden, typeof i, t, r]"
            )
            .await,
        r#"[[0, 11, 22], "undefined", "undefined", "undefined", "let x = 2 const", "let [x]"]"#
    );
    let output = world.run("{ const fixed = 1; fixed = 2 }").await;
    assert_eq!(output.error.map(|error| error.name).as_deref(), Some("TypeError"), "a block's const is a const");
    let output = world.run("let twice = 1; let twice = 2").await;
    assert_eq!(output.error.map(|error| error.fault), Some(Fault::Syntax), "twice in one program is a mistake");
}

#[tokio::test]
async fn an_error_names_its_line_and_column_in_what_the_entity_wrote() {
    let mut world = World::new();
    // The same text with `var` is not rewritten, so it shows the position that the engine itself reports.
    for (source, plain) in [
        ("null.x", "null.x"),
        ("let a;\nconst b = 1, c = 2;\n  boom()", "var a;\nvar   b = 1, c = 2;\n  boom()"),
        ("let a, b; null.x", "var a, b; null.x"),
        ("let a, b, c; boom(); let d", "var a, b, c; boom(); var d"),
        ("const s = `\n\n`; throw new Error('x')", "var   s = `\n\n`; throw new Error('x')"),
        (
            "let a;await null;\n\nlet b; throw new TypeError('t')",
            "var a;await null;\n\nvar b; throw new TypeError('t')",
        ),
        ("const é = 'ü', z = 1; null.x", "var   é = 'ü', z = 1; null.x"),
        ("let é; boom()", "var é; boom()"),
        ("\nlet a; refuse(1)", "\nvar a; refuse(1)"),
        ("let b;\n\nrefuse(\n  1)", "var b;\n\nrefuse(\n  1)"),
        ("let x = 1; class A {} boom()", "var x = 1, A = 1234;; boom()"),
    ] {
        let of = |error: Option<Error>| error.and_then(|error| error.place).map(|place| (place.line, place.column));
        let place = of(world.run(source).await.error);
        assert!(place.is_some(), "{source}");
        assert_eq!(place, of(World::new().run(plain).await.error), "{source}");
    }
    let error = world.run("let a, b;\nclass A {}\n  boom()").await.error.expect("an error");
    assert_eq!(error.place.map(|place| (place.line, place.column)), Some((3, Some(3))));
    world.run("function late() {\n  null.x\n}").await;
    let error = world.run("1;\nlate()").await.error.expect("an error");
    assert_eq!(error.place, Some(SourceLocation { program: "turn-13.js".into(), line: 2, column: None }));
}

#[tokio::test]
async fn what_does_not_compile_is_a_syntax_error_and_runs_nothing() {
    let mut world = World::new();
    for source in
        ["var x = 1; let = ;", "x = 2; }", "import x from 'y'", "export const a = 1", "await await", "class {"]
    {
        let output = world.run(source).await;
        let error = output.error.unwrap_or_else(|| panic!("{source}"));
        assert_eq!((error.fault, error.name.as_str()), (Fault::Syntax, "SyntaxError"), "{source}");
        assert!(error.place.is_some(), "{source}");
    }
    assert_eq!(world.value("typeof x").await, "\"undefined\"");
    let error = world.run("JSON.parse('{')").await.error.expect("an error");
    assert_eq!((error.fault, error.name.as_str()), (Fault::Threw, "SyntaxError"), "thrown, not a fault of the program");
}

#[tokio::test]
async fn the_value_is_the_completion_value_with_promises_awaited() {
    let mut world = World::new();
    for (source, value) in [
        ("1 + 1", "2"),
        ("var x = 5", "undefined"),
        ("5; let y = 3", "5"),
        ("if (true) { 'yes' }", "\"yes\""),
        ("for (var i = 0; i < 3; i++) i", "2"),
        ("Promise.resolve(4)", "4"),
        ("await Promise.resolve(4)", "4"),
        ("(async () => { await 0; return {a: [1, 'x']} })()", "{a: [1, \"x\"]}"),
        ("new Promise((r) => Promise.resolve().then(() => r(9)))", "9"),
        ("undefined", "undefined"),
        ("null", "null"),
        ("[1, , undefined, null, -0, 10n, NaN]", "[1, <empty>, undefined, null, -0, 10n, NaN]"),
        ("new Map([[1, {a: 2}]])", "Map(1) {1 => {a: 2}}"),
        ("new Set('ab')", "Set(2) {\"a\", \"b\"}"),
        ("(function f() {})", "[Function: f]"),
        ("class A { x = 1 }; new A", "A {x: 1}"),
        ("var o = {}; o.o = o; o", "{o: [Circular]}"),
        ("new Error('e')", "Error: e"),
        ("({get a() { throw 1 }, 'b-c': 2, [Symbol('s')]: 3})", "{a: [Getter], \"b-c\": 2, [Symbol(s)]: 3}"),
        ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("/a/g", "/a/g"),
        ("'\\ud800'", "\"\\ud800\""),
        ("await read('a') + await echo('b')", "\"ab\""),
        ("with ({q: 1}) q", "1"),
        ("var await1 = 010; await1", "8"),
    ] {
        assert_eq!(world.value(source).await, value, "{source}");
    }
}

#[tokio::test]
async fn a_promise_nobody_settles_or_handles_is_an_error() {
    let mut world = World::new();
    for (source, fault) in [
        ("await new Promise(() => {})", Fault::Unsettled),
        ("new Promise(() => {})", Fault::Unsettled),
        ("Promise.reject(new Error('r')); 1", Fault::Unhandled),
        ("(async () => { throw new Error('r') })(); 1", Fault::Unhandled),
        ("queueMicrotask(() => { throw new Error('r') }); 1", Fault::Unhandled),
        ("Promise.reject(new Error('r'))", Fault::Threw),
        ("await Promise.reject(new Error('r'))", Fault::Threw),
    ] {
        let error = world.run(source).await.error.unwrap_or_else(|| panic!("{source}"));
        assert_eq!(error.fault, fault, "{source}");
    }
    assert_eq!(world.value("var p = Promise.reject(1); await 0; p.catch(() => 2)").await, "2");
    assert_eq!(world.value("1").await, "1", "an earlier program's rejection is not this one's");
}

#[tokio::test]
async fn console_lines_are_captured_in_order() {
    let output = World::new()
        .run("console.log('a', 1, {b: 'c'}); console.warn(); console.error(null, [undefined]); console.info('\\ud800')")
        .await;
    assert_eq!(output.console, "a 1 {b: \"c\"}\n\nnull [undefined]\n\u{fffd}\n");
}

#[tokio::test]
async fn a_refused_call_throws_a_gate_error_that_code_can_read() {
    let mut world = World::new();
    let source = "try { refuse(1) } catch (e) {
        [e instanceof GateError, e instanceof Error, e.name, e.message, e.type, e.code, e.retry, e.data] }";
    assert_eq!(
        world.value(source).await,
        r#"[true, true, "GateError", "Denied EN-VIS-D-001: gate not available", "D", "EN-VIS-D-001", "fix_and_retry", {ward: "w"}]"#
    );
    let error = world.run("\nrefuse(1)").await.error.expect("uncaught");
    assert_eq!((error.name.as_str(), error.place.map(|place| place.line)), ("GateError", Some(2)));
    assert_eq!(world.calls.len(), 2, "the record stands either way");
}

#[tokio::test]
async fn arguments_arrive_by_name_and_what_json_cannot_hold_is_a_fault_with_its_path() {
    let mut world = World::new();
    world.run("done({total: 5})").await;
    world.run("read({path: 'a'}); echo(undefined); echo(); echo([1, undefined, 2.5, -0, 9007199254740991n])").await;
    world.run("echo({a: undefined, b: new Date(0), c: {toJSON: () => 'j'}, __proto__: null, ['__proto__']: 1})").await;
    let sent: Vec<_> = world.calls.iter().map(|(_, args)| args.clone()).collect();
    assert_eq!(
        sent,
        [
            json!({"answer": {"total": 5}}),
            json!({"path": "a"}),
            json!({}),
            json!({}),
            json!({"value": [1, null, 2.5, 0, 9_007_199_254_740_991_i64]}),
            json!({"value": {"b": "1970-01-01T00:00:00.000Z", "c": "j", "__proto__": 1}}),
        ]
    );
    for (argument, path) in [
        ("() => 1", "/0"),
        ("{a: [1, NaN]}", "/0/a/1"),
        ("{a: {b: () => 1}}", "/0/a/b"),
        ("9007199254740993n", "/0"),
        ("(() => { var o = {}; o.o = o; return o })()", "/0/o"),
        (
            "(() => { var o = []; for (let i = 0; i < 70; i++) o = [o]; return o })()",
            "/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0",
        ),
        ("{'a/b': Symbol()}", "/0/a~1b"),
        ("new Map([[1, 2]])", "/0"),
        ("{p: Promise.resolve(1)}", "/0/p"),
        ("'\\ud800'", "/0"),
        ("Array(4294967295)", "/0"),
        ("Array(10000).fill('x'.repeat(100000))", "/0/41"),
    ] {
        let value = world.value(&format!("try {{ echo({argument}) }} catch (e) {{ e.data.path }}")).await;
        assert_eq!(value, format!("{path:?}"), "{argument}");
    }
}

#[tokio::test]
async fn values_come_back_from_gates_as_plain_values() {
    let mut world = World::new();
    assert_eq!(
        world
            .value(
                "Object.defineProperty(Array.prototype, 0, {set() { throw 1 }, configurable: true});
                    Object.defineProperty(Object.prototype, 'a', {set() { throw 1 }, configurable: true});
                    var back = echo([{a: [1, 'é', null, true]}, {['__proto__']: 5}]);
                    delete Array.prototype[0]; delete Object.prototype.a;
                    [back, Object.keys(back[1]), Object.getPrototypeOf(back[1]) === Object.prototype]"
            )
            .await,
        r#"[[{a: [1, "é", null, true]}, {__proto__: 5}], ["__proto__"], true]"#
    );
}

#[tokio::test]
async fn what_must_not_exist_does_not() {
    let mut world = World::new();
    for name in [
        "WeakRef",
        "FinalizationRegistry",
        "setTimeout",
        "setInterval",
        "setImmediate",
        "require",
        "process",
        "Atomics",
        "SharedArrayBuffer",
        "gc",
        "std",
        "os",
        "navigator",
        "fetch",
        "Intl",
    ] {
        assert_eq!(world.value(&format!("typeof {name}")).await, "\"undefined\"", "{name}");
    }
    let output = world.run("await import('fs')").await;
    assert!(output.error.is_some(), "there are no modules");
}

#[tokio::test]
async fn a_name_read_before_its_declaration_is_undefined_and_a_const_may_be_assigned() {
    let mut world = World::new();
    assert_eq!(
        world.value("var early = later; let later = 1; const fixed = 1; fixed = 2; [early, later, fixed]").await,
        "[undefined, 1, 2]"
    );
}

#[tokio::test]
async fn a_gates_name_can_be_shadowed_for_one_program_only() {
    let mut world = World::new();
    assert_eq!(world.value("const echo = (x) => 'mine ' + x; echo(1)").await, "\"mine 1\"");
    assert_eq!(world.value("echo(1)").await, "1");
    assert_eq!(world.calls.len(), 1);
}
