//! Almost valid programs, and random text: each ends, and the next program runs.

use crate::support;

use cantrip_circle::code::ProgramLimits;
use cantrip_medium_javascript::Program;
use cantrip_tests::garble;
use proptest::prelude::*;
use support::{World, at};

/// Programs that together use most of the language, the gates and the ways to wait.
const PROGRAMS: &[&str] = &[
    "let total = 0; for (const [i, x] of [3, 1, 2].sort().entries()) { total += i * x } console.log(`t=${total}`); total",
    "class Box { #v; constructor(v) { this.#v = v } get v() { return this.#v } static of(v) { return new Box(v) } }\n\
     const { v, ...rest } = { v: Box.of(1).v, a: [1, , 2] }; JSON.stringify({ v, rest })",
    "async function f(n) { try { return await echo(n) } catch (e) { throw new Error(e.message) } finally { n++ } }\n\
     const all = await Promise.all([f(1), f({a: 2}), f('x')]); all.length",
    "function* g() { let i = 0; while (i < 3) yield i++ } label: for (const x of g()) { if (x > 1) break label }\n\
     try { refuse(1) } catch ({ name, code }) { console.error(name, code) }",
    "var re = /(?<y>\\d{4})-(?:a|b)*[^\\]/]/giu; 'x'.replace(re, m => m.toUpperCase()); new Map([[1, new Set([2n])]]);\n\
     Object.defineProperty({}, 'x', { get() { return Symbol.iterator in [] } }).x ?? done({ a: 1 })",
];

/// Words that have a meaning in JavaScript, or nearly.
const WORDS: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "`",
    "${",
    "'",
    "\"",
    "/",
    "/*",
    "*/",
    "//",
    "\n",
    ";",
    "=>",
    "...",
    "?.",
    "??=",
    "**",
    "await ",
    "async ",
    "yield ",
    "function ",
    "class ",
    "let ",
    "const ",
    "var ",
    "import('x')",
    "export ",
    "with (x) ",
    "new ",
    "delete ",
    "throw 1;",
    "return ",
    "debugger;",
    "eval('",
    "this",
    "super",
    "null.x;",
    "undefined",
    "0n",
    "0x",
    "1e999",
    "\\u{110000}",
    "\u{2028}",
    "\u{0}",
    "#x",
    "@",
    "done(",
    "done(1)",
    "echo(",
    "read()",
    "refuse()",
    "while (1) ",
    "Promise.reject(1)",
    "new Proxy({}, {})",
    "Array(2 ** 32)",
    "'x'.repeat(2 ** 30)",
    "label: ",
    "%",
];

fn tight() -> ProgramLimits {
    ProgramLimits { memory_bytes: 4 << 20, cpu_ms: 60, wall_ms: 5_000, ..ProgramLimits::default() }
}

/// Runs a text as a program, and then a valid program in the same sandbox.
fn survives(source: &str) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if Program::new("turn-1.js", source, at(0)).is_err() {
        // The text is refused before anything runs.
        return Ok(());
    }
    runtime.block_on(async {
        let mut world = World::with(tight());
        let (output, kept) = world.finish(source).await;
        let ends = [output.error.is_some(), output.limit.is_some(), output.stopped];
        prop_assert!(ends.iter().filter(|end| **end).count() <= 1, "it ends in one way: {:?}", output);
        prop_assert!(kept || output.rolled_back, "a sandbox is given up only by a roll-back: {:?}", output);
        prop_assert_eq!(output.stopped, world.answer.is_some(), "it stops for an answer alone: {:?}", output);
        // The program may have changed anything except the gates.
        let next = world.run("done(7)").await;
        prop_assert!(next.stopped, "{:?}", next);
        Ok(())
    })
}

proptest! {
    #![proptest_config(garble::samples(48))]

    #[test]
    fn a_program_that_is_almost_right_ends_and_the_next_one_runs(source in garble::garbled_text(PROGRAMS, WORDS)) {
        survives(&source)?;
    }

    #[test]
    fn words_thrown_together_end_and_the_next_program_runs(
        words in proptest::collection::vec(proptest::sample::select(WORDS), 1..24),
    ) {
        survives(&words.join(" "))?;
    }

    #[test]
    fn a_text_that_is_no_program_ends_and_the_next_one_runs(source in "\\PC{0,200}") {
        survives(&source)?;
    }
}
