//! One trial: how it is run, how it may end, and how it is scored.

use cantrip::Waiting;
use cantrip::canon::{EntityId, Money, RunId};
use cantrip::reply::{AnyCode, Refusal, codes};
use cantrip_contract::{Receipt, ReceiptId, Status, Unscored};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::ask::{Ask, JobState, Proposal, Proposed, Trial};
use super::context::JobContext;
use super::plan::CostBound;

/// One try of a trial, for its runner.
#[derive(Debug, Clone, Copy)]
pub struct TrialCall<'a> {
    pub trial: &'a Trial,
    /// The number of the try, from 1.
    pub try_number: u64,
    /// The idempotency key of this try.
    pub key: &'a str,
    pub context: &'a JobContext,
}

/// The way in which a try of a trial ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TrialEnding {
    /// The candidate answered.
    Answered(Value),
    /// The candidate itself failed: its output matched no schema, it gave no answer, or a ward ended it. It scores 0.
    OwnFailure { code: String, message: String },
    /// Something between the candidate and its answer failed. The trial is tried again.
    Infrastructure { code: String, message: String },
    /// The cap of the job does not pay for it. The job ends.
    CapReached { message: String },
    /// Policy refused it for another reason than the job's cap. The job fails with this reply.
    Denied { code: String, message: String, data: Value },
    /// A person has to approve it. The job waits.
    NeedsApproval { waiting: Waiting },
    /// It was cancelled, interrupted or handed back together with its job.
    Stopped,
}

/// A try of a trial that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRun {
    pub ending: TrialEnding,
    pub receipt_id: Option<ReceiptId>,
    pub run: Option<RunId>,
    pub entity: Option<EntityId>,
    pub turns: u64,
    pub cost: Option<Money>,
    pub latency_ms: u64,
    /// The names of the gates that were called, in order.
    pub gates: Vec<String>,
    /// True if this try had ended before: its recorded outcome was read, and nothing was asked.
    pub replayed: bool,
}

impl TrialRun {
    /// Returns a try that ended in this way and left nothing else.
    pub fn ended(ending: TrialEnding) -> Self {
        Self {
            ending,
            receipt_id: None,
            run: None,
            entity: None,
            turns: 0,
            cost: None,
            latency_ms: 0,
            gates: Vec::new(),
            replayed: false,
        }
    }

    /// Returns true if the candidate answered or failed itself, so that the trial is scored.
    pub fn is_settled(&self) -> bool {
        matches!(self.ending, TrialEnding::Answered(_) | TrialEnding::OwnFailure { .. })
    }

    /// Returns the output, if the candidate answered.
    pub fn output(&self) -> Option<&Value> {
        match &self.ending {
            TrialEnding::Answered(output) => Some(output),
            TrialEnding::OwnFailure { .. }
            | TrialEnding::Infrastructure { .. }
            | TrialEnding::CapReached { .. }
            | TrialEnding::Denied { .. }
            | TrialEnding::NeedsApproval { .. }
            | TrialEnding::Stopped => None,
        }
    }
}

/// Runs trials: as predicts or as casts.
pub trait TrialRunner: Send + Sync {
    /// Runs one try of a trial under its key, and returns how it ended. A try that was begun before is resumed, and one
    /// that has ended is read: a key asks a model at most once, however often it is run. An error is a fault of the store
    /// or of the job itself, and ends the job.
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>>;

    /// Ends a try that was begun and left, because its job is cancelled. A try that was not begun, or has ended, is left as
    /// it is.
    fn end<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<(), Refusal>> {
        let _ = call;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the most that one try of this trial can cost. Asked only if the job has a budget: a try that the rest of
    /// the budget does not pay for is not begun.
    fn worst<'a>(&'a self, trial: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>>;
}

/// The score of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialScore {
    /// In micro-units, at most 1,000,000; none if the trial is unscored.
    pub score_micro: Option<u64>,
    /// The reason why there is no score.
    pub unscored: Option<Unscored>,
    pub own_failure: bool,
    pub feedback: String,
    pub judge_receipts: Vec<ReceiptId>,
}

impl TrialScore {
    /// Returns the score of a trial that has none, for this reason.
    pub fn unscored(reason: Unscored, feedback: impl Into<String>) -> Self {
        Self {
            score_micro: None,
            unscored: Some(reason),
            own_failure: false,
            feedback: feedback.into(),
            judge_receipts: Vec::new(),
        }
    }

    /// Returns the score of a candidate that failed itself.
    pub fn own_failure(feedback: impl Into<String>) -> Self {
        Self {
            score_micro: Some(0),
            unscored: None,
            own_failure: true,
            feedback: feedback.into(),
            judge_receipts: Vec::new(),
        }
    }
}

/// The reason why a job stops in the middle of a trial.
#[derive(Debug)]
pub enum JobStop {
    /// The cap of the job, or its number of calls, does not allow the next trial.
    BudgetExhausted { message: String },
    /// The job fails with this reply.
    Failed(Refusal),
    /// The job waits.
    Waiting(Waiting),
    /// The job was cancelled, interrupted or handed back.
    Stopped,
}

impl JobStop {
    /// Returns why the job stops after a predict of its own, such as a judge's, ended in this way; the ending itself if the
    /// job goes on.
    pub fn from_ending(ending: TrialEnding) -> Result<Self, TrialEnding> {
        match ending {
            TrialEnding::CapReached { message } => Ok(Self::BudgetExhausted { message }),
            TrialEnding::Denied { code, message, data } => Ok(Self::Failed(denial(&code, &message, data))),
            TrialEnding::NeedsApproval { waiting } => Ok(Self::Waiting(waiting)),
            TrialEnding::Stopped => Ok(Self::Stopped),
            TrialEnding::Answered(_) | TrialEnding::OwnFailure { .. } | TrialEnding::Infrastructure { .. } => {
                Err(ending)
            }
        }
    }
}

/// Returns the refusal of a denial, with its own code where the fields of its message are known.
fn denial(code: &str, message: &str, data: Value) -> Refusal {
    Refusal::dynamic(code, data).unwrap_or_else(|_| codes::not_authorized("a trial of the job", message).into())
}

/// Scores trials.
pub trait TrialScorer: Send + Sync {
    /// Returns the trial that this one is scored together with: the other side of a pair. Both are then in one Ask, next
    /// to each other.
    fn partner(&self, trial: &Trial) -> Option<Trial> {
        let _ = trial;
        None
    }

    /// Returns the most that scoring this trial can cost: its judges. Asked only if the job has a budget.
    fn worst<'a>(&'a self, trial: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        let _ = trial;
        Box::pin(std::future::ready(Ok(CostBound::Free)))
    }

    /// Scores a trial whose candidate answered or failed itself. `other` is the run of its partner, if it has one that
    /// did so too. Called again for the same trial only if the process died before the score was written.
    fn score<'a>(
        &'a self,
        trial: &'a Trial,
        ran: &'a TrialRun,
        other: Option<&'a TrialRun>,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<TrialScore, JobStop>>;
}

/// Runs the proposals of a compile job.
pub trait ProposalRunner: Send + Sync {
    /// Asks for a proposal under this key, or reads the recorded text.
    fn propose<'a>(
        &'a self,
        proposal: &'a Proposal,
        key: &'a str,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<Proposed, JobStop>>;
}

/// The runner of proposals for jobs that make none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProposals;

impl ProposalRunner for NoProposals {
    fn propose<'a>(
        &'a self,
        _: &'a Proposal,
        _: &'a str,
        _: &'a JobContext,
    ) -> BoxFuture<'a, Result<Proposed, JobStop>> {
        let refusal = codes::contract_invalid("this job makes no proposals".to_owned());
        Box::pin(std::future::ready(Err(JobStop::Failed(refusal.into()))))
    }
}

/// Makes the candidates of an Ask ready for their trials: a compile job stores them when they are first made.
pub trait CandidateKeeper: Send + Sync {
    /// Stores the candidates of this Ask that are not stored yet. Called before the trials of the Ask, and again by a
    /// process that takes the job over: storing the same again changes nothing.
    fn keep<'a>(
        &'a self,
        ask: &'a Ask,
        state: &'a JobState,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<(), Refusal>>;
}

/// The keeper of jobs whose candidates are there before they begin.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCandidates;

impl CandidateKeeper for NoCandidates {
    fn keep<'a>(&'a self, _: &'a Ask, _: &'a JobState, _: &'a JobContext) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The cap that refused the last request of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    /// No cap refused it.
    Nobody,
    /// The cap of the job.
    JobCap,
    /// A cap of the trial itself, from a ward.
    OwnCap,
}

/// Returns how a try ended, from its receipt alone, so that a live outcome and a recorded one are told alike. `output` is
/// its answer, and `message` describes its failure.
pub fn ending_of_receipt(receipt: &Receipt, output: Option<Value>, message: String, refused: RefusedBy) -> TrialEnding {
    let code = receipt.error_code.clone().unwrap_or_default();
    match (receipt.status, output) {
        (Status::Succeeded, Some(output)) => TrialEnding::Answered(output),
        (Status::Cancelled, _) => TrialEnding::Stopped,
        _ if refused == RefusedBy::JobCap => TrialEnding::CapReached { message },
        _ if refused == RefusedBy::OwnCap => TrialEnding::OwnFailure { code, message },
        // A ward that was reached before the candidate said anything tells nothing about it: nobody answered.
        _ if is_own_failure(&code) && !(code == WARD && receipt.budget.iterations == 0) => {
            TrialEnding::OwnFailure { code, message }
        }
        _ if is_denial(&code) => TrialEnding::Denied { code, message, data: Value::Null },
        (Status::Succeeded | Status::Failed | Status::Denied, _) => TrialEnding::Infrastructure { code, message },
    }
}

/// The code of a ward that ended a cast.
const WARD: &str = codes::WARD_REACHED.any().as_str();

/// The codes with which a candidate itself fails.
const OWN_FAILURES: [AnyCode; 4] =
    [codes::OUTPUT_SCHEMA.any(), codes::WARD_REACHED.any(), codes::LOOP_DETECTED.any(), codes::ANSWER_CUT.any()];

/// The codes with which policy refuses money.
const DENIALS: [AnyCode; 8] = [
    codes::NOT_AUTHORIZED.any(),
    codes::BUDGET_SPENT.any(),
    codes::PER_CALL.any(),
    codes::PER_DAY.any(),
    codes::EXPIRED.any(),
    codes::REVOKED.any(),
    codes::RECONCILE_FIRST.any(),
    codes::PRICE_UNKNOWN.any(),
];

fn is_own_failure(code: &str) -> bool {
    OWN_FAILURES.iter().any(|own| own.as_str() == code)
}

fn is_denial(code: &str) -> bool {
    DENIALS.iter().any(|denial| denial.as_str() == code)
}
