//! The circle: gates, wards, mediums and their sandboxes.
//!
//! A [`Circle`] is built from gates ([`gate`]), wards ([`Wards`]) and a medium ([`medium`]), then frozen. Every call of
//! an entity goes through [`Circle::decide`], which refuses the call, asks for a person's approval, or returns the
//! effect to carry out. Gates run only through the [`Permit`] that a decision contains; delegation is an effect that
//! the loop carries out. The sandboxes of the code mediums are in [`javascript`] and [`python`], the cage of the shell
//! in [`shell`], clients of the Model Context Protocol in [`mcp`], and the rules that map the arguments of a call in
//! code to a gate's arguments in [`arguments`]. This crate knows no model and no store.

pub mod arguments;
pub mod batch;
pub mod fence;
pub mod gate;
pub mod javascript;
pub mod limits;
pub mod mcp;
pub mod medium;
pub mod python;
pub mod shell;
pub mod ward;

mod child_process;
mod circle;
mod decide;
mod delegation;
mod label;
mod program_end;
mod tool_definition;

pub use circle::{Circle, CircleBuilder, CircleFault, DelegationGrants};
pub use decide::{ApprovalReason, CallArguments, CallRequest, CallerState, Decision, Effect, Permit, trifecta_denial};
pub use delegation::{Child, Delegation, PredictCall, SystemPrompt};
pub use gate::{AnyGate, Gate};
pub use label::{Label, LabelFault, Labels};
pub use medium::{Medium, MediumKind};
pub use program_end::{Position, ProgramEnd};
pub use tool_definition::ToolDefinition;
pub use ward::Wards;
