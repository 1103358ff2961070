//! Benchmarks. Each prints a table of ratios against floors that were measured in the same run.
//!
//! A bare number depends on the machine and its load as much as on the code. A ratio against something simple,
//! measured on the same machine in the same minute, is comparable across machines. A benchmark is a module with a
//! `run` and a line in `BENCHES`.

#[cfg(feature = "rooms")]
mod fold;
#[cfg(feature = "rooms")]
mod http;
#[cfg(feature = "rooms")]
mod jobs;
mod measure;
#[cfg(feature = "rooms")]
mod pages;
#[cfg(feature = "rooms")]
mod predict;
#[cfg(feature = "rooms")]
mod said;
#[cfg(feature = "rooms")]
mod spend;
#[cfg(feature = "rooms")]
mod store;
mod stream;

use std::process::ExitCode;

/// A benchmark: its name, its subject and its function.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(),
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "stream",
        about: "events into upserts, against appending to a string and against recounting the text",
        run: stream::run,
    },
    #[cfg(feature = "rooms")]
    Bench {
        name: "store",
        about: "durable turns, against flushed writes and bare transactions of the same bytes",
        run: store::run,
    },
    #[cfg(feature = "rooms")]
    Bench { name: "bytes", about: "what turns take on the disk, against what was said in them", run: store::bytes },
    #[cfg(feature = "rooms")]
    Bench {
        name: "spend",
        about: "reservations under one budget and under many, against bare transactions",
        run: spend::run,
    },
    #[cfg(feature = "rooms")]
    Bench { name: "predict", about: "a predict, against the cast it wraps; receipts verified", run: predict::run },
    #[cfg(feature = "rooms")]
    Bench {
        name: "jobs",
        about: "what a job adds to a trial; its statistics; a job of 100,000 rows that goes on",
        run: jobs::run,
    },
    #[cfg(feature = "rooms")]
    Bench {
        name: "fold",
        about: "a turn at the end of a thread of 10,000, against one at its beginning; a fork there",
        run: fold::run,
    },
    #[cfg(feature = "rooms")]
    Bench {
        name: "http",
        about: "a cast over HTTP, against the same cast in process and a route that does nothing",
        run: http::run,
    },
    #[cfg(feature = "rooms")]
    Bench {
        name: "pages",
        about: "the reads behind a page, on 100,000 runs and 100,000 turns, against those on few",
        run: pages::run,
    },
];

fn usage() -> String {
    let mut usage = String::from("Usage: cargo run --profile dist -p cantrip-bench -- NAME...\n\nBenches:\n");
    for bench in BENCHES {
        usage += &format!("  {:<8} {}\n", bench.name, bench.about);
    }
    usage + "\nExamples:\n  cargo run --profile dist -p cantrip-bench -- stream\n"
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names.iter().any(|name| name == "--help" || name == "-h") {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<Option<&Bench>> =
        names.iter().map(|name| BENCHES.iter().find(|bench| bench.name == name)).collect();
    if let Some(unknown) = chosen.iter().position(Option::is_none) {
        eprintln!("there is no bench `{}`\n\n{}", names[unknown], usage());
        return ExitCode::from(2);
    }
    if chosen.is_empty() {
        eprint!("{}", usage());
        return ExitCode::from(2);
    }
    if cfg!(debug_assertions) {
        eprintln!("warning: not a release build; ratios of a debug build say nothing");
    }
    for bench in chosen.into_iter().flatten() {
        (bench.run)();
    }
    ExitCode::SUCCESS
}
