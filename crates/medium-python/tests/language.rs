//! The behaviour of Python programs: which names persist, what is shown, the positions of errors, and gate calls.

use crate::support;

use cantrip_circle::medium::{Medium, Program};
use cantrip_loom::ToolMode;
use serde_json::{Value, json};
use support::{World, at};

#[tokio::test]
async fn variables_functions_and_classes_of_the_top_level_persist() {
    let mut world = World::new();
    let program = "
import math
x = 1
def up(by=2):
    global x
    x += by
    return x
class Point:
    def __init__(self, a): self.a = a
    def twice(self): return self.a * 2
from dataclasses import dataclass
@dataclass
class Pair:
    one: int
    two: str
";
    assert_eq!(world.run(program).await.error, None);
    assert_eq!(world.value("up()").await, "3");
    assert_eq!(world.value("x = x * 10; x").await, "30");
    assert_eq!(
        world.value("[up(), Point(4).twice(), math.floor(2.5), Pair(1, 'a')]").await,
        "[32, 8, 2, Pair(one=1, two='a')]"
    );
}

#[tokio::test]
async fn the_last_expression_shows_itself_as_the_language_would() {
    let mut world = World::new();
    for (source, shown) in [
        ("1 + 1", "2"),
        ("'text'", "'text'"),
        ("'it\\'s'", "\"it's\""),
        ("[1, 'a', None, 2.5, True, (1,), {'k': {1}}]", "[1, 'a', None, 2.5, True, (1,), {'k': {1}}]"),
        ("1, 2", "(1, 2)"),
        ("x = 3\nx", "3"),
        ("x = 3; x ; # end", "3"),
        ("class C:\n    def __repr__(self): return 'a C'\nC()", "a C"),
        ("[C(), {'c': C()}]", "[a C, {'c': a C}]"),
        ("b'\\x00a'", "b'\\x00a'"),
        ("2 ** 70", "1180591620717411303424"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("(n := 4)", "4"),
        ("\"\"\"a\nb\"\"\"", "'a\\nb'"),
        ("f'{x!r:>4}'", "'   3'"),
        ("[\n  1,  # one\n  2,\n]", "[1, 2]"),
        ("'\\U0001f980'", "'\u{1f980}'"),
        ("float('nan')", "nan"),
        ("a = []; a.append(a); a", "[[...]]"),
        ("repr = 5; repr", "5"),
        ("print = 1; str = 2; [print, str]", "[1, 2]"),
    ] {
        assert_eq!(world.value(source).await, shown, "{source}");
    }
    for source in ["", "x = 1", "None", "# nothing", "if x:\n  2", "pass"] {
        assert_eq!(world.run(source).await.value, None, "{source}");
    }
}

#[tokio::test]
async fn print_is_captured_in_order() {
    let mut world = World::new();
    let output = world
        .run("print('a', 1, None)\nprint('b', end='')\nprint()\nprint('c', 'd', sep='-')\ngive(1)\nprint('e')")
        .await;
    assert_eq!(output.console, ["a 1 None", "b", "c-d", "e"]);
}

#[tokio::test]
async fn errors_point_to_the_line_and_column_of_the_program() {
    let mut world = World::new();
    world.run("def fails():\n    return 1 / 0\n").await;
    for (source, name, place) in [
        ("x = 1\ny = x +\n", "SyntaxError", (2, 8)),
        ("x = 1\n\n  y = 2", "SyntaxError", (3, 1)),
        ("x = 1\nx.nothing", "AttributeError", (2, 1)),
        ("x = 1; undefined", "NameError", (1, 8)),
        ("x = 1\nfails()\n", "ZeroDivisionError", (2, 1)),
        ("x = 1\ny = [fails()]\nx", "ZeroDivisionError", (2, 6)),
        ("def g():\n    raise ValueError('no')\n\ng()", "ValueError", (2, 11)),
        ("x = 1; 1 + refuse(1)", "RuntimeError", (1, 12)),
        ("[i for i in range(3) if i.no]", "AttributeError", (1, 25)),
        ("import nothing", "ModuleNotFoundError", (1, 1)),
        ("assert 1 == 2", "AssertionError", (1, 8)),
    ] {
        let error = world.run(source).await.error.unwrap_or_else(|| panic!("{source} must fail"));
        assert_eq!(
            (error.name.as_str(), (error.line, error.column)),
            (name, (Some(place.0), Some(place.1))),
            "{source}"
        );
    }
    let output = world.run("x = 1\nfails()").await;
    let shown = world.medium.observe(7, &output);
    assert_eq!(shown, "ZeroDivisionError: division by zero (turn-7.py:2:1)");
}

#[tokio::test]
async fn an_exception_with_any_arguments_is_the_programs_own() {
    let mut world = World::new();
    for (source, name, message) in [
        ("raise ValueError(1)", "ValueError", "1"),
        ("raise ValueError(1, 'two')", "ValueError", "(1, 'two')"),
        ("raise ValueError([1, 2])", "ValueError", "[1, 2]"),
        ("text = 'as it is'\nraise ValueError(text)", "ValueError", "as it is"),
        ("raise SystemExit", "SystemExit", ""),
        ("raise SystemExit(3)", "SystemExit", "3"),
        ("def leave():\n    raise SystemExit(2)\nleave()", "SystemExit", "2"),
    ] {
        let error = world.error(source).await;
        assert_eq!((error.0.as_str(), error.1.as_str()), (name, message), "{source}");
    }
    assert_eq!(world.value("try:\n    raise ValueError(7)\nexcept ValueError as e:\n    x = str(e)\nx").await, "'7'");
    // An exception that is called by another name is not known before it runs; the interpreter is still not blamed.
    let (_, message) = world.error("kind = ValueError\nraise kind(1)").await;
    assert!(!message.contains("monty"), "{message}");
}

#[tokio::test]
async fn half_of_a_surrogate_pair_is_refused_before_the_program_runs() {
    let mut world = World::new();
    world.run("x = 1").await;
    let error = world.run("x = 2\ny = 'a\\ud800b'").await.error.expect("a refusal");
    assert_eq!((error.name.as_str(), error.line, error.column), ("SyntaxError", Some(2), Some(7)));
    assert!(error.message.contains("half of a surrogate pair"), "{}", error.message);
    assert_eq!(world.value("x").await, "1", "none of it ran");
    assert_eq!(world.value("len('\\ufffd\\U0001f980')").await, "2");
}

#[tokio::test]
async fn a_program_that_fails_leaves_what_it_did_before() {
    let mut world = World::new();
    world.run("x = 1\ny = 2\nx = 3\n1 / 0\ny = 4").await;
    assert_eq!(world.value("x, y").await, "(3, 2)");
    world.run("x = 5\nif x\n").await;
    assert_eq!(world.value("x").await, "3", "nothing of a program that cannot be read runs");
}

#[tokio::test]
async fn gates_are_functions_with_positions_dicts_and_keywords() {
    let mut world = World::new();
    for (call, mapped) in [
        ("give(1)", json!({"value": 1})),
        ("give(1, 2)", json!({"value": 1, "more": 2})),
        ("give(1, more=2)", json!({"value": 1, "more": 2})),
        ("give(more=2, value=None)", json!({"more": 2, "value": null})),
        ("give({'value': 1})", json!({"value": 1})),
        ("give({'value': 1, 'more': 2})", json!({"value": 1, "more": 2})),
        ("give({'other': 1})", json!({"value": {"other": 1}})),
        ("give(1, {'more': 2})", json!({"value": 1, "more": 2})),
        ("give()", json!({})),
        ("give((1, 'a', [True, None, 2.5]))", json!({"value": [1, "a", [true, null, 2.5]]})),
        ("give(**{'value': 'x'})", json!({"value": "x"})),
        ("give(*[1, 2])", json!({"value": 1, "more": 2})),
        ("give(9007199254740991)", json!({"value": 9_007_199_254_740_991_i64})),
        ("read('a.txt')", json!({"path": "a.txt"})),
        ("read({'path': 'a.txt'})", json!({"path": "a.txt"})),
        ("read(path='a.txt')", json!({"path": "a.txt"})),
        ("f = give\nf('through a variable')", json!({"value": "through a variable"})),
        ("g = lambda x: give(x)\ng(4)", json!({"value": 4})),
    ] {
        world.calls.clear();
        let output = world.run(call).await;
        assert_eq!(output.error, None, "{call}");
        let arguments: Vec<&Value> = world.calls.iter().map(|(_, arguments)| arguments).collect();
        assert_eq!(arguments, [&mapped], "{call}");
    }
}

#[tokio::test]
async fn what_no_gate_can_take_is_told_with_its_place_and_can_be_caught() {
    let mut world = World::new();
    world.run("class C: pass\nimport datetime\ncycle = {}\ncycle['self'] = cycle\ndeep = 1\nfor i in range(70): deep = [deep]").await;
    for (call, place, rule) in [
        ("give(1, 2, 3)", "", "3 arguments were passed, 2 are declared"),
        ("give(other=1)", "/other", "there is no argument of this name"),
        ("give(1, value=2)", "/value", "this argument was passed twice"),
        ("give({'value': 1}, value=2)", "/value", "this argument was passed twice"),
        ("give([1, float('nan')])", "/0/1", "NaN"),
        ("give({'a': float('inf')})", "/0/a", "NaN and the infinities"),
        ("give(2 ** 53)", "/0", "beyond 2^53"),
        ("give(-2 ** 70)", "/0", "beyond 2^53"),
        ("give(value={'a': [len]})", "/value/a/0", "a function is not JSON"),
        ("give([lambda: 1])", "/0/0", "is not JSON"),
        ("give(give)", "/0", "a function is not JSON"),
        ("give(b'x')", "/0", "bytes is not JSON"),
        ("give({1, 2})", "/0", "a set is not JSON"),
        ("give({'a': {1: 2}})", "/0/a", "a key of an object must be a text"),
        ("give(C())", "/0", "an instance of a class is not JSON"),
        ("give(C)", "/0", "is not JSON"),
        ("give(datetime.date(2026, 1, 1))", "/0", "a date or time is not JSON"),
        ("give(...)", "/0", "is not JSON"),
        ("give(cycle)", "/0/self", "contains itself"),
        ("give(deep)", "/0", "nested deeper than 64"),
        ("give('x' * (5 << 20))", "/0", "larger than"),
    ] {
        let (name, message) = world.error(call).await;
        assert_eq!(name, "RuntimeError", "{call}");
        assert!(message.contains(&format!("argument \"{place}")) && message.contains(rule), "{call}: {message}");
        let caught =
            format!("try:\n    {call}\nexcept RuntimeError as error:\n    'caught' in 'caught: ' + str(error)");
        assert_eq!(world.run(&caught).await.error, None, "{call}");
    }
}

#[tokio::test]
async fn what_a_gate_gives_is_a_value_of_the_language() {
    let mut world = World::new();
    assert_eq!(world.value("v = give({'a': [1, 2.5, None, True, 'x']})\nv['a'][1] + v['a'][0]").await, "3.5");
    assert_eq!(world.value("v").await, "{'a': [1, 2.5, None, True, 'x']}");
    assert_eq!(world.value("give(5.0)").await, "5", "a record does not tell 5 from 5.0, so no program may");
    assert_eq!(world.value("give(-0.0)").await, "0");
    assert_eq!(world.value("give(1e300)").await, "1e+300");
    assert_eq!(world.value("type(give(1.0e15)), type(give(0.5))").await, "(<class 'int'>, <class 'float'>)");
    assert_eq!(world.value("v['a'].append(9); v").await, "{'a': [1, 2.5, None, True, 'x', 9]}");
    assert_eq!(world.value("[give(i) for i in range(3)]").await, "[0, 1, 2]");
    assert_eq!(world.value("{k: give(k) for k in 'ab'}").await, "{'a': 'a', 'b': 'b'}");
    assert_eq!(world.value("sum(give(i) for i in range(4))").await, "6");
}

#[tokio::test]
async fn a_refusal_is_a_runtime_error_with_the_text_of_the_reply() {
    let mut world = World::new();
    let (name, message) = world.error("refuse(1)").await;
    assert_eq!((name.as_str(), message.as_str()), ("RuntimeError", "Denied EN-VIS-D-001: no"));
    let caught = "try:\n    refuse(1)\nexcept RuntimeError as error:\n    text = str(error)\ntext";
    assert_eq!(world.value(caught).await, "'Denied EN-VIS-D-001: no'");
    assert_eq!(world.value("try:\n    refuse(1)\nexcept Exception:\n    x = 2\nfinally:\n    x += 1\nx").await, "3");
}

#[tokio::test]
async fn a_gate_that_a_ward_took_away_is_bound_and_denied() {
    let mut world = World::new();
    let (name, message) = world.error("taken(1)").await;
    assert_eq!(name, "RuntimeError");
    assert!(message.starts_with("Denied EN-VIS-D-001"), "{message}");
    assert_eq!(world.calls, [("taken".to_owned(), json!({}))]);
    let text = world.medium.present(&world.circle, ToolMode::Tool).text.expect("words");
    assert!(text.contains("\nread(path") && !text.contains("\ntaken("), "{text}");
}

#[tokio::test]
async fn a_program_may_take_a_gates_name_for_its_own_length() {
    let mut world = World::new();
    assert_eq!(world.value("done = 1\ndef give(x): return 'mine'\n[done, give(2)]").await, "[1, 'mine']");
    assert_eq!(world.value("give(2)").await, "2");
    assert_eq!(world.value("give = None\ngive").await, "None");
    assert_eq!(world.value("give(3)").await, "3");
    world.run("done('the end')").await;
    assert_eq!(world.answer, Some(json!("the end")));
    assert_eq!(world.value("def later(): return give(4)\nlater()").await, "4");
    assert_eq!(world.value("give = lambda x: 'shadow'\nlater()").await, "'shadow'");
    assert_eq!(world.value("later()").await, "4");
}

#[tokio::test]
async fn awaiting_what_a_gate_gives_is_a_type_error_and_the_presentation_says_so() {
    let mut world = World::new();
    assert_eq!(world.error("await give(1)").await.0, "TypeError");
    let text = world.medium.present(&world.circle, ToolMode::Tool).text.expect("words");
    assert!(text.contains("Awaiting what they return is a TypeError"), "{text}");
    assert_eq!(world.value("async def f(): return give(2)\nawait f()").await, "2");
}

#[tokio::test]
async fn a_gate_cannot_be_called_from_inside_a_native_function_and_that_is_an_error() {
    let mut world = World::new();
    for program in [
        "list(map(give, [1]))",
        "sorted([2, 1], key=lambda x: give(x))",
        "class R:\n    def __repr__(self): return give('x')\nrepr(R())",
    ] {
        let (name, _) = world.error(program).await;
        assert_eq!(name, "NotImplementedError", "{program}");
    }
    assert_eq!(world.calls, [], "no gate was called");
    assert_eq!(world.value("give(1)").await, "1");
}

#[tokio::test]
async fn the_context_is_a_variable_from_the_first_program_on() {
    let mut world = World::new();
    world.isolation.context = Some(json!({"rows": [1, 2, 3]}));
    assert_eq!(world.value("sum(context['rows'])").await, "6");
    assert_eq!(world.value("context['rows'].append(4); context").await, "{'rows': [1, 2, 3, 4]}");
    assert_eq!(world.value("context = 5; context").await, "5");
    assert_eq!(world.value("context").await, "5");
}

#[tokio::test]
async fn a_text_that_is_no_program_is_told_without_running() {
    let mut world = World::new();
    world.run("x = 1").await;
    for source in ["x = 2\0".to_owned(), format!("x = 2 # {}", "a".repeat(300 << 10))] {
        let (name, _) = world.error(&source).await;
        assert_eq!(name, "SyntaxError");
    }
    assert_eq!(world.value("x").await, "1");
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("{1:", "}"),
        ("-", "1"),
        ("not ", "1"),
        ("lambda:", "1"),
        ("f'{", "}'"),
        ("x.", "x"),
        ("x[", "0]"),
        ("f(", ")"),
    ] {
        let source = format!("{}1{}", open.repeat(20_000), close.repeat(20_000));
        let output = world.run(&source).await;
        assert!(output.error.is_some_and(|error| error.name == "SyntaxError"), "{open}");
    }
    let ifs: String = (0..400).map(|depth| format!("{}if x:\n", " ".repeat(depth))).collect();
    assert_eq!(world.error(&format!("{ifs}{}x", " ".repeat(400))).await.0, "SyntaxError");
    let elifs = format!("if x: pass\n{}", "elif x: pass\n".repeat(10_000));
    assert!(world.run(&elifs).await.error.is_none_or(|error| error.name == "SyntaxError"));
    assert_eq!(world.value("x").await, "1");
}

#[tokio::test]
async fn two_sandboxes_share_nothing() {
    let mut one = World::new();
    let mut two = World::of(one.medium.clone(), &json!({}));
    one.run("secret = 41\nimport math\nmath = 'mine'").await;
    assert_eq!(two.error("secret").await.0, "NameError");
    assert_eq!(two.value("import math\nmath.floor(1.5)").await, "1");
    assert_eq!(one.value("secret").await, "41");
    assert_eq!(one.medium.sandboxes(), 2);
    drop((one.sandbox.take(), two.sandbox.take()));
    assert_eq!(one.medium.sandboxes(), 0);
}

#[tokio::test]
async fn dropping_a_waiting_program_ends_it() {
    let mut world = World::new();
    let program = Program { name: "turn-1.py".to_owned(), source: "give(1)\ngive(2)".to_owned(), now: at(1) };
    let next = world.take().start(program).await.expect("it starts");
    drop(next);
    assert_eq!(world.medium.sandboxes(), 0);
    assert_eq!(world.value("give(3)").await, "3");
}
