//! The JavaScript medium: QuickJS sandboxes that wait in gates without holding a thread.
//!
//! A program calls a gate as a plain function, and the answer may take an hour. A thread for each waiting program would
//! cost too much, and rewriting the entity's code into callbacks would change what the entity wrote. So each program
//! runs on its own stack (`raw`), pinned to one of a few sandbox threads (`host`). A gate call suspends that stack and
//! the answer resumes it. The interrupt handler suspends it too, so a busy loop gets only its time slices.
//!
//! The end of a program is latched by the host, outside of the language (`engine`): an accepted `done`, a limit, a
//! kill. After that no function of the entity can be called, so no `catch`, `finally` or pending job continues. A
//! suspended program is never dropped, because that would unwind through the engine; it is resumed to be killed.

mod engine;
mod host;
mod json;
pub mod limits;
mod medium;
mod meter;
mod natives;
mod output;
mod raw;
mod rewrite;
mod run;
mod sandbox;
mod watchdog;
mod worker;

pub use host::{Host, Options};
pub use medium::Javascript;
pub use output::{Error, Fault, ProgramOutput, SourceLocation};
pub use sandbox::{Answer, Canceller, Event, FinishedProgram, Program, Sandbox, SuspendedProgram, Throw};

/// The reason why a program is paused.
enum PauseReason {
    /// The program waits for its next time slice.
    Slice,
    /// The program waits for the answer to a gate call. `gate` is the index of the gate in the sandbox's table.
    Call { gate: usize, arguments: Result<Vec<Option<serde_json::Value>>, cantrip_circle::arguments::Fault> },
}

/// The reason why a paused program is resumed.
enum WakeReason {
    /// The program starts or continues.
    GoOn,
    Answer(sandbox::Answer, cantrip_canon::Timestamp),
    /// The program ends here; none of its code runs any more.
    Kill,
}
