//! What do the parts of a code mean, in words for people?
//!
//! They are defined here once, for the page, the terminal and all other code that explains a code.

use crate::code::{Advice, Area, Layer, ReplyType};

impl Layer {
    /// The part of the system that decided.
    pub const fn decider(self) -> &'static str {
        match self {
            Self::Wa => "the circle reading the request against its world",
            Self::En => "wards, policy, approval, spend",
            Self::Ct => "the life cycle of contracts",
            Self::Mcp => "infrastructure",
        }
    }
}

impl Area {
    /// The subject of the decision.
    pub const fn domain(self) -> &'static str {
        match self {
            Self::Sys => "the process as a whole",
            Self::Res => "names and ids to things",
            Self::Vis => "what a circle can see at all",
            Self::Io => "network and devices",
            Self::Read => "reading files, looms, records",
            Self::Write => "changing files",
            Self::Exec => "running code, gates, casts, jobs",
            Self::Db => "the store",
            Self::Parse => "text to structure",
            Self::Val => "structure against schema, contract or limit",
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
            Self::Denied => "a ward, a policy, a budget or a person refused a sound request",
            Self::Failure => "the system, a sandbox, a provider or a store failed",
        }
    }

    /// The next step of the caller.
    pub const fn action(self) -> &'static str {
        match self {
            Self::Success => "go on",
            Self::Invalid => "correct it and retry",
            Self::Denied => "ask for scope",
            Self::Failure => "stop, report the trace id",
        }
    }
}

impl Advice {
    /// The meaning of the advice.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::FixAndRetry => "correct the request first",
            Self::AskScope => "trying again changes nothing; someone must allow more",
            Self::Stop => "report it",
            Self::Wait => "temporary; not at once",
        }
    }
}
