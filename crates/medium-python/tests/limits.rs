//! The limits of a Python program: the behaviour at each limit, and that other programs are not affected.
//!
//! These tests run in the test's own process, so they cover the limits that the interpreter can enforce by itself.
//! Failures that only a worker process survives are tested with the binary that contains the worker.

use crate::support;

use cantrip_circle::medium::{Program, ProgramEvent};
use cantrip_loom::OutputRecord;
use serde_json::{Value, json};
use support::{World, at};

/// Limits that are small enough to be reached at once.
fn tight() -> Value {
    json!({"memory": "8 MiB", "cpu": "200ms", "wall": "20s"})
}

async fn stopped_at(wards: &Value, code: &str) -> OutputRecord {
    let mut world = World::with(wards);
    let output = world.run(&format!("print('before')\n{code}")).await;
    assert_eq!(output.console.first().map(String::as_str), Some("before"), "{code}");
    assert_eq!((&output.error, &output.value), (&None, &None), "{code}");
    assert_eq!(world.value("1 + 1").await, "2", "{code}: the next program works");
    output
}

#[tokio::test]
async fn an_endless_program_is_stopped_by_its_processor_time_whatever_it_catches() {
    for code in [
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException:\n        while True: pass\n    finally:\n        while True: pass",
        "def f():\n    try:\n        while True: pass\n    except:\n        f()\nf()",
        "sum(range(10 ** 12))",
        "for i in range(10 ** 12): pass",
        "all(True for i in range(10 ** 12))",
        "while True: now()",
        "while True:\n    try:\n        sorted([2, 1], key=lambda x: sum(range(10 ** 9)))\n    except BaseException: pass",
        "import itertools\nfor i in itertools.count(): pass",
        "import itertools\nmax(itertools.count())",
        "x = 0\nwhile True: x = [i for i in range(1000)]",
        "import json\nwhile True: json.dumps([1] * 100)",
        "async def f():\n    while True: await g()\nasync def g(): pass\nawait f()",
        "class C:\n    def __eq__(self, other):\n        while True: pass\nC() == C()",
        "class R:\n    def __repr__(self):\n        while True: pass\nR()",
        "[1, 2].index(3) if False else [x for x in iter(lambda: 1, 2)].clear",
        "d = {}\nwhile True: d[1] = d.get(1, 0) + 1",
        "'a' in iter(lambda: 1, 2)",
    ] {
        let output = stopped_at(&tight(), code).await;
        assert!(
            output.limit.as_deref() == Some("cpu") || output.limit.as_deref() == Some("memory"),
            "{code}: {:?}",
            output.limit
        );
        assert!(output.rolled_back, "{code}");
    }
}

#[tokio::test]
async fn a_program_that_takes_too_long_outside_of_gates_is_stopped_by_wall_time() {
    let output = stopped_at(&json!({"cpu": "60s", "wall": "50ms"}), "while True: pass").await;
    assert_eq!(output.limit.as_deref(), Some("wall"));
}

#[tokio::test]
async fn memory_that_runs_out_stops_a_program_even_if_it_would_catch_the_error() {
    let wards = json!({"memory": "8 MiB", "cpu": "20s"});
    for code in [
        "10 ** 10 ** 8",
        "2 ** 10 ** 9",
        "1 << 10 ** 10",
        "'x' * 10 ** 10",
        "b'x' * 10 ** 10",
        "[0] * 10 ** 10",
        "(0,) * 10 ** 10",
        "bytes(10 ** 10)",
        "'x'.ljust(10 ** 10)",
        "f'{1:>1000000000}'",
        "'{:>1000000000}'.format(1)",
        "('a' * 10 ** 4).replace('a', 'b' * 10 ** 5)",
        "'a'.join(['b' * 1000] * 10 ** 6)",
        "list(range(10 ** 9))",
        "[i for i in range(10 ** 9)]",
        "[[0] * 1000 for i in range(10 ** 7)]",
        "[[[k for k in range(100)] for j in range(100)] for i in range(10000)]",
        "{i: str(i) for i in range(10 ** 8)}",
        "{(i, i) for i in range(10 ** 8)}",
        "a = []\nwhile True: a.append(a)",
        "s = 'x'\nwhile True: s += s",
        "a = []\nfor i in range(10 ** 8): a = [a]",
        "l = []\nwhile True:\n    try:\n        l.append('y' * 100000)\n    except BaseException: pass",
        "try:\n    'x' * 10 ** 10\nexcept BaseException:\n    pass\nfinally:\n    while True: pass",
        "import itertools\nlist(itertools.repeat(1))",
        "from collections import deque\nimport itertools\ndeque(itertools.count())",
        "import json\njson.loads('[' + '1,' * 4000000 + '1]')",
        "class C: pass\nl = []\nwhile True: l.append(C())",
        "l = []\ndef f(): return lambda: l\nwhile True: l.append(f())",
        "int('9' * 4000) ** 40000",
        "x = {}\nfor i in range(10 ** 8): x = {'k': x, i: x}",
        "raise MemoryError('says the program itself')",
    ] {
        let output = stopped_at(&wards, code).await;
        assert_eq!(output.limit.as_deref(), Some("memory"), "{code}");
        assert!(output.rolled_back, "{code}");
    }
}

#[tokio::test]
async fn what_the_rest_of_the_process_takes_is_not_charged_to_a_program() {
    let mut world = World::with(&json!({"memory": "8 MiB"}));
    let hoard = vec![1_u8; 64 << 20];
    let busy = std::thread::spawn(|| (0..200).map(|i| vec![0_u8; 1 << 20].len() + i).sum::<usize>());
    assert_eq!(world.value("len([i for i in range(10000)])").await, "10000");
    for _ in 0..20 {
        assert_eq!(world.value("give('x' * 1000000) is None").await, "False", "what was handed over is given back");
    }
    assert_eq!(hoard.len() + usize::from(busy.join().is_err()), 64 << 20);
}

#[tokio::test]
async fn recursion_that_is_too_deep_is_an_error_the_program_can_catch() {
    let mut world = World::new();
    let output = world.run("x = 1\ndef f(): return f() + 1\nf()").await;
    assert_eq!(output.error.map(|error| error.name), Some("RecursionError".to_owned()));
    assert_eq!((output.limit.as_deref(), output.rolled_back), (Some("stack"), false));
    assert_eq!(world.value("x").await, "1", "the sandbox is the same");
    assert_eq!(world.value("try:\n    f()\nexcept RecursionError:\n    x = 2\nx").await, "2");
    for code in [
        "d = []\nfor i in range(100000): d = [d]\nlen(repr(d))",
        "d == d, d < d",
        "import json\njson.dumps(d)",
        "json.loads('[' * 100000)",
        "import re\nre.compile('(' * 5000 + ')' * 5000)",
        "class A:\n    def __repr__(self): return repr(self)\nA()",
        "class B:\n    def __eq__(self, other): return self == other\nB() == B()",
        "class C:\n    def __init__(self): C()\nC()",
        "class D:\n    def __getattr__(self, name): return self.other\nD().x",
        "class E:\n    def __hash__(self): return hash(self)\nhash(E())",
        "def g(n): return sorted([n], key=lambda x: g(x + 1))\ng(0)",
        "async def h(): await h()\nawait h()",
        "t = ()\nfor i in range(100000): t = (t,)\nhash(t)",
        "give(d)",
        "d.append(t)\nt = None\nd = None",
        "isinstance(1, ((((int,),),),))",
        "l = []\nl.append(l)\nl == l, repr(l)",
        "k = {}\nk['k'] = k\nrepr(k)",
        "def m(n): return m(n + give(1))\nm(0)",
    ] {
        let output = world.run(code).await;
        assert!(!output.rolled_back, "{code}: {output:?}");
        assert_eq!(world.value("x").await, "2", "{code}");
    }
    let mut shallow = World::with(&json!({"stack": "32 KiB"}));
    let depth = "def f(n):\n    try:\n        return f(n + 1)\n    except RecursionError:\n        return n\nf(0)";
    assert_eq!(shallow.value(depth).await, "63");
    assert_eq!(world.value(depth).await, "1023");
}

#[tokio::test]
async fn output_is_cut_for_the_reader_and_stops_the_program_at_its_cap() {
    let mut world = World::with(&json!({"output": "64 KiB"}));
    let output = world.run("for i in range(1000): print('y' * 40)\n'z' * 10000").await;
    assert_eq!(output.limit, None);
    let shown: usize =
        output.console.iter().map(|line| line.len() + 1).sum::<usize>() + output.value.map_or(0, |value| value.len());
    assert!(shown <= (16 << 10) + 1, "{shown}");
    assert_eq!(output.cut + (16 << 10), 1000 * 41 + 10_002);
    let output = world.run("x = 0\nwhile True:\n    x += 1\n    print('z' * 1000)").await;
    assert_eq!((output.limit.as_deref(), output.rolled_back), (Some("output"), false));
    assert_eq!(world.value("x").await, "66");
    let caught = "y = 0\nwhile True:\n    try:\n        print('z' * 1000)\n    except BaseException:\n        y += 1\n        give('after')\n        print('more')";
    let output = world.run(caught).await;
    assert_eq!(output.limit.as_deref(), Some("output"));
    assert_eq!(world.calls, [], "no gate after the cap");
    assert_eq!(world.run("print('w' * 1000000)").await.limit.as_deref(), Some("output"));
    assert_eq!(world.value("'fine'").await, "'fine'");
}

#[tokio::test]
async fn a_rolled_back_program_is_gone_and_its_neighbours_are_not() {
    let mut one = World::with(&tight());
    let mut two = World::of(one.medium.clone(), &tight());
    two.run("kept = 'neighbour'").await;
    one.run("x = 1").await;
    for bomb in ["x = 2\nwhile True: pass", "x = 3\nl = []\nwhile True: l.append(l)", "give(1)\nwhile True: pass"] {
        assert!(one.run(bomb).await.rolled_back, "{bomb}");
        assert_eq!(two.value("kept").await, "'neighbour'", "{bomb}");
    }
    assert_eq!(one.error("x").await.0, "NameError", "a new sandbox: the loom would have rebuilt it");
}

#[tokio::test]
async fn a_program_that_waits_can_be_cancelled_and_one_that_runs_can_be_dropped() {
    let mut world = World::new();
    let source = "print('so far')\ntry:\n    give(1)\nfinally:\n    while True: pass".to_owned();
    let next =
        world.take().start(Program { name: "turn-1.py".to_owned(), source, now: at(1) }).await.expect("it starts");
    let ProgramEvent::Call(paused) = next else { panic!("it waits") };
    let ProgramEvent::Finished(finished) = paused.cancel().await.expect("it ends") else { panic!("it is over") };
    assert_eq!((finished.output.limit.as_deref(), finished.output.rolled_back), (Some("cancelled"), true));
    assert_eq!(finished.output.console, ["so far"]);
    assert!(finished.sandbox.is_none());
    let endless = Program { name: "turn-2.py".to_owned(), source: "while True: pass".to_owned(), now: at(2) };
    let running = world.take().start(endless);
    let cut = tokio::time::timeout(std::time::Duration::from_millis(50), running).await;
    assert!(cut.is_err(), "it ran until it was dropped");
    assert_eq!(world.value("'at once'").await, "'at once'");
}

#[tokio::test]
async fn time_spent_in_a_gate_is_not_the_programs() {
    let mut world = World::with(&json!({"cpu": "100ms", "wall": "200ms"}));
    let source = "give(1)\n'went on'".to_owned();
    let next =
        world.take().start(Program { name: "turn-1.py".to_owned(), source, now: at(1) }).await.expect("it starts");
    let ProgramEvent::Call(paused) = next else { panic!("it waits") };
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    let answer = cantrip_circle::medium::Answer::Value(json!(1));
    let ProgramEvent::Finished(finished) = paused.resume(answer, at(2)).await.expect("it goes on") else {
        panic!("it is over")
    };
    assert_eq!(finished.output.value.as_deref(), Some("'went on'"));
}
