//! The circle: gates, wards, capability labels and the traits of mediums.
//!
//! A [`Circle`] is built from gates ([`gate`]), wards ([`Wards`]) and a medium ([`medium`]), then frozen. Every call of
//! an entity goes through [`Circle::decide`], which refuses the call, asks for a person's approval, or returns the
//! effect to carry out. Gates run only through the [`Permit`] that a decision contains; delegation is an effect that
//! the loop carries out. The rules that map the arguments of a call in code to a gate's arguments are in [`arguments`],
//! and the parts that all mediums of code share in [`code`]. Each sandbox and the client of the Model Context Protocol
//! is a crate of its own that uses this one. This crate knows no engine, no model and no store.

pub mod approved_files;
pub mod arguments;
pub mod batch;
pub mod child_process;
pub mod code;
pub mod fence;
pub mod gate;
pub mod limits;
pub mod medium;
pub mod ward;

mod circle;
mod circle_builder;
mod decide;
mod delegation;
mod label;
mod program_end;
mod tool_definition;

pub use circle::{Circle, DelegationGrants};
pub use circle_builder::{CircleBuilder, CircleFault};
pub use decide::{ApprovalReason, CallArguments, CallRequest, CallerState, Decision, Effect, Permit, trifecta_denial};
pub use delegation::{Child, Delegation, PredictCall, SystemPrompt};
pub use gate::{AnyGate, Gate};
pub use label::{Label, LabelFault, Labels};
pub use medium::{Medium, MediumKind};
pub use program_end::{Position, ProgramEnd};
pub use tool_definition::ToolDefinition;
pub use ward::Wards;
