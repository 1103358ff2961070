//! Why does a run wait for its crystal? The message of its provider, and what a user can do about it.

use cantrip::loom::CastParked;
use cantrip::{Waiting, parked};
use cantrip_reply::ReplyType;

use crate::present::{BOLD, DIM, code_text, colour, strip_control};

/// The fault that parked a run, in a form for people.
#[derive(Debug)]
pub struct CrystalFault {
    code: String,
    message: String,
    /// The part of the provider's message that `message` does not have.
    detail: Option<String>,
}

impl CrystalFault {
    /// Returns the fault if the run waits for its crystal.
    pub fn of_waiting(waiting: &Waiting) -> Option<Self> {
        let Waiting::Crystal { fault, detail } = waiting else { return None };
        let (code, message) = (fault.mark.code.clone(), fault.message.clone());
        Some(Self { code, message, detail: detail.clone() })
    }

    /// Reads the fault from the record that parked a run.
    pub fn of_record(parked: &CastParked) -> Option<Self> {
        let error = parked.error.as_ref()?;
        let (code, message) = (error.mark.code.clone(), error.message.clone());
        Some(Self { code, message, detail: parked.detail.clone() })
    }

    /// Returns the provider's message on one line.
    pub fn provider_message(&self) -> String {
        let detail = self.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
        strip_control(&format!("{}{detail}", self.message)).replace('\n', " ")
    }

    /// Returns what a user can do about the fault.
    pub fn advice(&self) -> &'static str {
        parked::advice(&self.code)
    }

    pub fn code(&self) -> &str {
        &self.code
    }

    /// Renders message, hint and code in the form of a refusal.
    pub fn render(&self) -> String {
        let style = colour(ReplyType::Failure);
        let (said, advice, code) = (self.provider_message(), self.advice(), code_text(self.code()));
        format!("{style}waiting:{style:#} {said}\n{BOLD}hint:{BOLD:#} {advice}\n{DIM}{code}{DIM:#}")
    }
}
