//! The engine of a cast: a pure step machine that decides what an entity does next.
//!
//! Nothing here reads a clock, waits, or touches a disk, a network or a model: time, ids and outcomes are passed in. So
//! the same code runs live, on resume, in replay and in simulation.

mod call;
mod definition;
mod denial;
mod fault;
pub mod fold;
mod funds;
pub mod limits;
pub mod list;
mod machine;
pub mod policy;

pub use call::Call;
pub use definition::{CrystalFacts, Definition, OtherCrystals, Settings};
pub use denial::{PolicyRefusal, policy_denial};
pub use fault::{CantripFault, CantripFaults};
pub use funds::Funds;
pub use machine::{
    AuthorizeKind, AuthorizeRequest, CallOutcome, CallTask, CallTaskKind, CastFacts, CastFailure, CastMedium,
    ChildOutcome, ChildSpec, CrystalRequest, Effect, EndedProgram, EntityHistory, FreeCall, Input, Machine,
    PolicyAnswer, PrepareRequest, ProgramStart, ReadyPredict, RefusalWording, RequestPurpose, RunPayer, SpawnRequest,
    StepContext, UnansweredIntent, UnpaidReason, WorstCase, crystal_subject, halt_of, images_of, is_same_json, millis,
    program_answer, program_name, refusal_of, timestamp_from_millis, truncation_refusal,
};
