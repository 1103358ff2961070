//! Jobs: many trials of candidates on examples, as one run that can be killed, resumed, joined, continued and cancelled.
//!
//! An evaluation and a compile job differ in what they ask for, not in how it is run. So the driver takes a source of
//! asks, a runner of trials, a scorer and a closer, and knows nothing of prompts, metrics or reports. It writes a row for
//! each scored trial in the step of its record. Everything else that it needs after a crash is the state of the store:
//! the next ask is computed again from the rows, and a trial that was begun is found under its key.
//!
//! There is no cache. An answer belongs to one trial of one job.

mod ask;
mod bounds;
mod close;
mod context;
mod decide;
mod drive;
mod driver;
mod funds;
mod join;
mod lease;
mod load;
mod open;
mod payer;
mod plan;
mod predicts;
mod progress;
mod reply;
mod trial;
mod units;

pub use ask::{
    Ask, AskSource, DecidedCandidate, JobStanding, JobState, Proposal, Proposed, Trial, TrialFacts, TrialList,
};
pub use bounds::{JobContinuation, JobLimits};
pub use close::{JobCloser, JobClosing, JobEnd, JobEndKind};
pub(crate) use context::purpose_of;
pub use context::{JobContext, trial_key};
pub use driver::{JobDriver, JobParts, JobRequest};
pub use load::job_state;
pub use plan::{CostBound, CostPlan};
pub use predicts::{PredictTrials, TrialInput, refused_by};
pub use progress::{JobProgressView, JobWatcher};
pub use reply::JobReply;
pub use trial::{
    CandidateKeeper, JobStop, NoCandidates, NoProposals, ProposalRunner, RefusedBy, TrialCall, TrialEnding, TrialRun,
    TrialRunner, TrialScore, TrialScorer, ending_of_receipt,
};
