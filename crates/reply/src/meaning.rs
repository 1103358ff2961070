//! What do the parts of a code mean, in words for people?
//!
//! They are defined here once, for the page, the terminal and all other code that explains a code.

use crate::code::{Advice, Area, Layer, ReplyType};

impl Layer {
    /// The part of the system that decided.
    pub const fn decider(self) -> &'static str {
        match self {
            Self::Wa => "the circle: does the request make sense here?",
            Self::En => "limits and rules: wards, policy, approvals, spending",
            Self::Ct => "the life cycle of runs, signatures, artifacts, pointers",
            Self::Mcp => "the system (not the protocol MCP): transports, sandboxes, providers, stores",
        }
    }
}

impl Area {
    /// The subject of the decision.
    pub const fn domain(self) -> &'static str {
        match self {
            Self::Sys => "the process as a whole",
            Self::Res => "finding things by name or id",
            Self::Vis => "which gates a circle has",
            Self::Io => "network and devices",
            Self::Read => "reading files, looms, records",
            Self::Write => "changing files",
            Self::Exec => "running code, gates, casts, jobs",
            Self::Db => "the store",
            Self::Parse => "parsing text",
            Self::Val => "checking values against a schema or a limit",
            Self::Gate => "preconditions and life cycle",
            Self::Log => "loom, journal, receipts, ledger",
            Self::Cfg => "spells, environment, keys, prices",
        }
    }
}

impl ReplyType {
    /// The meaning of the type.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Success => "it was done as asked",
            Self::Invalid => "the request cannot be carried out as stated",
            Self::Denied => "a ward, a policy, a budget or a person refused a valid request",
            Self::Failure => "the system, a sandbox, a provider or a store failed",
        }
    }

    /// The next step of the caller.
    pub const fn action(self) -> &'static str {
        match self {
            Self::Success => "continue",
            Self::Invalid => "correct it and retry",
            Self::Denied => "ask for permission or a higher limit; a retry alone changes nothing",
            Self::Failure => "stop, and report the trace id",
        }
    }
}

impl Advice {
    /// The meaning of the advice.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::FixAndRetry => "correct the request first",
            Self::AskScope => "a retry changes nothing; a person must permit more",
            Self::Stop => "report it",
            Self::Wait => "temporary: wait, then retry",
        }
    }
}
