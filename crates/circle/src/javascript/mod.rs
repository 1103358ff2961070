//! The JavaScript medium: QuickJS sandboxes that wait in gates without holding a thread.
//!
//! A program calls a gate as a plain function, and the answer may take an hour. A thread for each waiting program would
//! cost too much, and turning the entity's code into callbacks would change what it wrote. So each program runs on a
//! stack of its own (`raw`), pinned to one of a few sandbox threads (`host`): a gate call suspends that stack and
//! its answer resumes it. The interrupt handler suspends it too, so a busy loop only gets its slices.
//!
//! What ends a program is latched by the host, outside of the language (`engine`): an accepted `done`, a limit, a
//! kill. From then on no function of the entity can be called, so no `catch`, `finally` or pending job goes on. A
//! suspended program is never dropped, because that would unwind through the engine; it is resumed to be killed.

mod engine;
mod host;
mod json;
mod medium;
mod meter;
mod natives;
mod output;
mod raw;
mod rebuild;
mod rewrite;
mod run;
mod sandbox;
mod watchdog;
mod worker;

pub use host::{Host, Options};
pub use medium::Javascript;
pub use output::{Error, Fault, Limit, ProgramOutput, SourceLocation};
pub use rebuild::{Divergence, RebuildResult, RecordedCall, RecordedProgram};
pub use sandbox::{
    Answer, Call, Canceller, Event, FinishedProgram, Gate, Program, ProgramFault, ProgramLimits, Sandbox, SandboxError,
    SandboxSpec, SuspendedProgram, Throw,
};

/// What a paused program waits for.
enum PauseReason {
    /// Its next slice.
    Slice,
    /// The answer of a gate, by its place in the table, to these arguments.
    Call { gate: usize, arguments: Result<Vec<Option<serde_json::Value>>, crate::arguments::Fault> },
}

/// What wakes a paused program.
enum WakeReason {
    /// It runs on, or begins.
    GoOn,
    Answer(sandbox::Answer, cantrip_canon::Timestamp),
    /// It ends here, and nothing of it runs any more.
    Kill,
}
