//! `done` stops a Python program at the call, and only the host can decide that it did.

use crate::support;

use serde_json::json;
use support::World;

/// Programs that call `done` and then try to continue.
const SWALLOWERS: &[(&str, &str)] = &[
    ("bare except", "try:\n    done(1)\nexcept:\n    after()\nafter()"),
    ("except BaseException", "try:\n    done(1)\nexcept BaseException:\n    after()\nfinally:\n    after()\nafter()"),
    ("a catching loop", "while True:\n    try:\n        done(1)\n    except BaseException:\n        after()"),
    (
        "a finally that returns",
        "def f():\n    try:\n        done(1)\n    finally:\n        return after()\nf()\nafter()",
    ),
    ("a function", "def f():\n    done(1)\n    after()\nf()\nafter()"),
    (
        "nested functions",
        "def f(n):\n    try:\n        f(n - 1) if n else done(1)\n    finally:\n        after()\nf(5)\nafter()",
    ),
    ("a comprehension", "[done(i) if i == 1 else i for i in range(3)]\nafter()"),
    ("a generator expression", "sum(done(1) for i in range(3))\nafter()"),
    ("a lambda", "(lambda: done(1))()\nafter()"),
    ("a conditional", "done(1) or after()\nafter()"),
    ("a default argument", "def f(x=done(1)): pass\nafter()"),
    ("a decorator", "@done\ndef f(): pass\nafter()"),
    ("an f-string", "f'{done(1)}'\nafter()"),
    ("an argument", "give(done(1))\nafter()"),
    (
        "a context manager",
        "class M:\n    def __enter__(self): return self\n    def __exit__(self, *a):\n        after()\n        return True\nwith M():\n    done(1)\nafter()",
    ),
    (
        "an async function",
        "async def f():\n    try:\n        done(1)\n    finally:\n        after()\nawait f()\nafter()",
    ),
    (
        "gathered",
        "import asyncio\nasync def f(): done(1)\nasync def g(): after()\nawait asyncio.gather(f(), g())\nafter()",
    ),
    (
        "a constructor",
        "class C:\n    def __init__(self):\n        try:\n            done(1)\n        finally:\n            after()\nC()\nafter()",
    ),
    ("a class body", "class C:\n    x = done(1)\nafter()"),
    ("a method", "class C:\n    def m(self): done(1)\nC().m()\nafter()"),
    ("a second answer", "done(1)\ndone(2)"),
    ("a tuple of answers", "done(1), done(2)"),
    ("submit_answer", "try:\n    submit_answer(1)\nfinally:\n    after()"),
    ("partial", "from functools import partial\npartial(done, 1)()\nafter()"),
    ("an unpacking", "done(*[1])\nafter()"),
    ("keywords", "done(answer=1)\nafter()"),
    ("a retry after a malformed one", "try:\n    done()\nexcept RuntimeError:\n    done(1)\nafter()"),
];

#[tokio::test]
async fn nothing_that_swallows_errors_lets_a_program_go_on_after_done() {
    for (name, code) in SWALLOWERS {
        let mut world = World::new();
        let program = format!(
            "def after():\n    print('after')\n    give('after')\n    done(2)\n{code}\nprint('end')\ngive('end')\ndone(3)"
        );
        let answered = code.contains("@done");
        let output = world.run(&program).await;
        if answered {
            // The decorated function is not JSON: a malformed `done` is an error like any other.
            assert_eq!(output.error.map(|error| error.name), Some("RuntimeError".to_owned()), "{name}");
            assert_eq!(world.answer, None, "{name}");
            continue;
        }
        assert_eq!((output.console.len(), output.error, output.limit), (0, None, None), "{name}");
        assert_eq!(world.answer, Some(json!(1)), "{name}");
        assert!(!world.gates_called().contains(&"give"), "{name}");
        let value = world.value("'the next program works'").await;
        assert_eq!(value, "'the next program works'", "{name}");
    }
}

#[tokio::test]
async fn variables_keep_the_values_they_had_when_done_was_called() {
    let mut world = World::new();
    world
        .run("x = 1\nl = []\nfor i in range(5):\n    l.append(i)\n    x = i\n    if i == 2: done(x)\nx = 'after'")
        .await;
    assert_eq!(world.answer, Some(json!(2)));
    assert_eq!(world.value("x, l").await, "(2, [0, 1, 2])");
}

#[tokio::test]
async fn a_malformed_done_ends_nothing_and_can_be_caught() {
    let mut world = World::new();
    for malformed in ["done()", "done(1, 2)", "done(float('nan'))", "done(anser=1)", "done({'answer': {1, 2}})"] {
        let output = world.run(&format!("{malformed}\nprint('not reached')")).await;
        assert_eq!(output.error.map(|error| error.name), Some("RuntimeError".to_owned()), "{malformed}");
        let program = format!("try:\n    {malformed}\nexcept RuntimeError as error:\n    print('caught')\n'went on'");
        let output = world.run(&program).await;
        assert_eq!(
            (output.console, output.value),
            (vec!["caught".to_owned()], Some("'went on'".to_owned())),
            "{malformed}"
        );
    }
    assert_eq!(world.answer, None);
    world.run("done(None)").await;
    assert_eq!(world.answer, Some(json!(null)));
}

#[tokio::test]
async fn nothing_that_a_program_raises_or_names_ends_it_as_done_does() {
    let mut world = World::new();
    for program in [
        "raise SystemExit",
        "raise SystemExit('done')",
        "raise KeyboardInterrupt('done')",
        "raise BaseException('done')",
        "raise RuntimeError('the program was stopped')",
        "raise TimeoutError('time limit exceeded: 6s > 5s')",
        "raise Exception('done', 1)",
        "import sys\nsys.exit(0)",
        "exit()",
        "quit()",
    ] {
        let output = world.run(&format!("x = 1\n{program}")).await;
        assert!(output.error.is_some() && output.limit.is_none() && !output.rolled_back, "{program}: {output:?}");
        assert_eq!(world.answer, None, "{program}");
        assert_eq!(world.value("2").await, "2", "{program}");
    }
    let shadowed = world.value("done = 1\nsubmit_answer = 2\ndone + submit_answer").await;
    assert_eq!((shadowed.as_str(), &world.answer), ("3", &None));
    world.run("done('for real')").await;
    assert_eq!(world.answer, Some(json!("for real")));
}
