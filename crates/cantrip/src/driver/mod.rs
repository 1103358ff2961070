//! Who carries out what the machine asks for?
//!
//! One driver for every store, crystal, circle and medium: it appends, asks, executes, spawns and waits, and tells the
//! machine what came of it. It decides nothing, so what it loses in a crash is only what was under way. Children run in
//! tasks that their parent joins; cancelling goes down the tree, answers come up.

mod authorize;
mod call_executor;
mod children;
mod crystal_requests;
mod entity_driver;
mod halt;
mod idle_sandboxes;
mod recovery;
mod run;
mod run_budget;
mod run_funds;
mod run_observer;
mod runtime;
mod sandbox;
mod token_budget;

pub(crate) use entity_driver::{DriveOutcome, EntityDriver, EntityInit, TreePosition, WaitReason};
pub(crate) use halt::HaltSignal;
pub(crate) use idle_sandboxes::{IdleSandboxes, SandboxHolder};
pub use run::store_refusal;
pub(crate) use run::{EntityLog, FirstRecords, GuardWording, LoadedBodies, Run, RunError};
pub(crate) use run_funds::RunFunds;
pub(crate) use run_observer::RunAccounting;
pub use run_observer::{CastEnd, CastEndKind, ExtraWrites, RunObserver, RunStart};
pub use runtime::{MachineClock, MachineEntropy, Runtime};
pub(crate) use sandbox::{ProgramStep, SandboxState, groups, output_difference};
pub(crate) use token_budget::TokenBudget;
