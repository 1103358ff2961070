//! Who carries out the actions that the machine asks for?
//!
//! One driver serves every store, crystal, circle and medium. It appends, sends requests, executes, spawns and waits,
//! and reports the results to the machine. It decides nothing, so a crash loses only the work that was in progress.
//! Children run in tasks that their parent joins. Cancellation travels down the tree, answers travel up.

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

pub(crate) use entity_driver::{DriveOutcome, EntityDriver, EntityInit, TreePosition};
pub(crate) use halt::HaltSignal;
pub(crate) use idle_sandboxes::{IdleSandboxes, SandboxHolder};
pub(crate) use run::{EntityLog, FirstRecords, GuardWording, LoadedBodies, Run};
pub(crate) use run_funds::RunFunds;
pub(crate) use run_observer::RunAccounting;
pub use run_observer::{CastEnd, CastEndKind, ExtraWrites, RunObserver, RunStart};
pub use runtime::{MachineClock, MachineEntropy, Runtime};
pub(crate) use sandbox::{ProgramStep, SandboxState, groups, output_difference};
pub(crate) use token_budget::TokenBudget;
