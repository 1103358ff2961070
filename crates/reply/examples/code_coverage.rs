//! Compares the codes that tests provoked with the registry: `code_coverage PROVOKED PENDING`.

use std::process::ExitCode;

use cantrip_reply::testing::coverage;

fn main() -> ExitCode {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    let [provoked, pending] = paths.as_slice() else {
        eprintln!("usage: code_coverage PROVOKED PENDING");
        return ExitCode::from(2);
    };
    // If no code was provoked, the tests wrote no file, and every code is missing.
    let provoked = std::fs::read_to_string(provoked).unwrap_or_default();
    let outcome = match std::fs::read_to_string(pending) {
        Ok(pending) => coverage(&provoked, &pending),
        Err(error) => Err(format!("{}: {error}", pending.display())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(faults) => {
            eprintln!("{faults}");
            ExitCode::FAILURE
        }
    }
}
