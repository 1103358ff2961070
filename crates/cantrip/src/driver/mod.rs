//! Who carries out what the machine asks for?
//!
//! One driver for every store, crystal, circle and medium: it appends, asks, executes, spawns and waits, and tells the
//! machine what came of it. It decides nothing, so what it loses in a crash is only what was under way. Children run in
//! tasks that their parent joins; cancelling goes down the tree, answers come up.

mod asking;
mod children;
mod clerk;
mod environment;
mod estate;
mod execute;
mod grant;
mod halting;
mod idle;
mod judging;
mod purse;
mod run;
mod runtime;
mod seat;
mod tokens;

pub(crate) use clerk::Office;
pub use clerk::{Clerk, Closes, Closing, Opens, Papers};
pub(crate) use environment::{Environs, Step, differing, groups};
pub(crate) use halting::Halting;
pub(crate) use idle::{Idle, Resting};
pub(crate) use purse::Purse;
pub use run::store_refusal;
pub(crate) use run::{Begins, Loaded, Log, Run, Spoken, Stopped};
pub use runtime::{MachineClock, MachineEntropy, Runtime};
pub(crate) use seat::{Person, Position, Rest, Seat, Waiting};
pub(crate) use tokens::Tokens;
