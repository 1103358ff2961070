//! Is it allowed? A pure function of a stored input: no clock, no store, and the same answer forever.
//!
//! The input is stored unchanged, so that anyone can evaluate it again. Its ids are texts: the inputs of a decision are
//! kept as they were given, even if this version could not make such an id.

use cantrip_canon::{Currency, EntityId, Hash, RunId, Timestamp, stable_hash_of};
use serde::{Deserialize, Serialize};

use crate::reason::{self, Reason};
use crate::{ApprovalState, AuthorizationMode, Decision, Payer, REASON_CODES_VERSION, RetryClass, Ruling, Terms};

/// The point at which policy is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before a predict opens.
    Predict,
    /// Before a gate is called.
    Gate,
    /// In the transaction of each reserve.
    Spend,
}

/// The kind of action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    ModelCall,
    GateCall,
    Predict,
}

/// The action that policy decides about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    pub kind: SubjectKind,
    pub signature_id: Option<String>,
    pub gate: Option<String>,
    pub provider: Option<String>,
    pub model: Option<String>,
    pub args_hash: Option<Hash>,
    /// The labels of what the gate touches.
    pub labels: Vec<String>,
    /// True if a ward requires an approval of this call, and a person can be asked.
    pub approval_ward: bool,
}

impl Subject {
    /// A request to a model.
    pub fn model_call(provider: impl Into<String>, model: impl Into<String>) -> Self {
        Self { provider: Some(provider.into()), model: Some(model.into()), ..Self::of(SubjectKind::ModelCall) }
    }

    /// A call of a gate with arguments that hash to `args`.
    pub fn gate_call(gate: impl Into<String>, args: Hash, labels: Vec<String>) -> Self {
        Self { gate: Some(gate.into()), args_hash: Some(args), labels, ..Self::of(SubjectKind::GateCall) }
    }

    fn of(kind: SubjectKind) -> Self {
        Self {
            kind,
            signature_id: None,
            gate: None,
            provider: None,
            model: None,
            args_hash: None,
            labels: Vec::new(),
            approval_ward: false,
        }
    }

    /// The hash by which an approval names the subject.
    pub fn hash(&self) -> Hash {
        stable_hash_of(self).expect("texts and flags have a canonical form")
    }
}

/// The caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Principal {
    pub owner: Payer,
    pub run_id: Option<String>,
    pub root_run_id: Option<String>,
    pub thread_id: Option<String>,
    pub autopilot_id: Option<String>,
}

impl Principal {
    /// Returns the principal of a run without a parent: its owner, its root entity and the name of its agent.
    pub fn of_run(owner: Payer, run: RunId, thread: EntityId, agent: Option<&str>) -> Self {
        let run_id = Some(run.to_string());
        let (thread_id, autopilot_id) = (Some(thread.to_string()), agent.map(str::to_owned));
        Self { owner, root_run_id: run_id.clone(), run_id, thread_id, autopilot_id }
    }

    /// Returns true if an authorization with these terms covers this principal.
    pub fn is_covered_by(&self, terms: &Terms) -> bool {
        let run = |scope: &String| self.run_id.as_ref() == Some(scope) || self.root_run_id.as_ref() == Some(scope);
        self.owner == terms.owner
            && terms.scope.run_id.as_ref().is_none_or(run)
            && terms.scope.thread_id.as_ref().is_none_or(|scope| self.thread_id.as_ref() == Some(scope))
            && terms.scope.autopilot_id.as_ref().is_none_or(|scope| self.autopilot_id.as_ref() == Some(scope))
    }
}

/// The authorization that was resolved, and the revision of its terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolvedAuthorization {
    pub authorization_id: String,
    pub revision: u64,
    pub terms_hash: Hash,
}

/// The cap on the path that has the least room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunCap {
    pub scope_id: String,
    pub limit: i64,
    pub spent: i64,
    pub reserved: i64,
}

/// The state of an attempt that is not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenState {
    Reserved,
    ReconcileRequired,
}

/// An earlier attempt of the same call that is not settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenAttempt {
    pub attempt: u32,
    pub state: OpenState,
    /// The retry class of the stored row: a request cannot change it.
    pub retry_class: RetryClass,
}

impl OpenAttempt {
    /// Returns true if the call must not be repeated before a person has checked.
    fn blocks(&self) -> bool {
        match (self.state, self.retry_class) {
            (OpenState::ReconcileRequired, RetryClass::SafeRetry) => false,
            (OpenState::ReconcileRequired, RetryClass::DedupeReconcileRequired) | (OpenState::Reserved, _) => true,
        }
    }
}

/// The counters, as they were read in the transaction of the evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    pub spent: i64,
    pub reserved: i64,
    /// The UTC date of the evaluation.
    pub day: String,
    pub day_spent: i64,
    pub day_reserved: i64,
    pub run_cap: Option<RunCap>,
    pub open_attempt: Option<OpenAttempt>,
}

/// The worst cost of the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub amount: i64,
    /// None if no price is known.
    pub currency: Option<Currency>,
    pub priced: bool,
}

impl Request {
    fn is_spend(&self) -> bool {
        self.amount > 0 || !self.priced
    }
}

/// The current state of the approval for this subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalSnapshot {
    pub approval_id: String,
    pub state: ApprovalState,
    pub subject_hash: Hash,
    pub granted: Option<i64>,
    pub spent: i64,
    pub reserved: i64,
    pub expires_at: Timestamp,
}

/// A denial that was decided elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplicitDenial {
    pub reason_code: String,
}

/// The findings about the request before policy is evaluated; each is a code, or null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guards {
    pub manifest_validation: Option<String>,
    pub loop_detected: Option<String>,
    pub ssrf_block: Option<String>,
    pub recipient: Option<String>,
    pub explicit: Option<ExplicitDenial>,
}

/// The labels that the entity has touched so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trifecta {
    /// True if the ward is on.
    pub ward: bool,
    pub touched: Vec<String>,
}

const TRIFECTA: [&str; 3] = ["private_data", "untrusted_content", "external_comm"];

impl Trifecta {
    fn completed_by(&self, labels: &[String]) -> bool {
        let held = |wanted: &str| self.touched.iter().chain(labels).any(|label| label == wanted);
        self.ward && !labels.is_empty() && TRIFECTA.into_iter().all(held)
    }
}

/// All inputs of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyInput {
    pub v: u64,
    pub policy_id: String,
    pub phase: Phase,
    pub at: Timestamp,
    pub subject: Subject,
    pub principal: Principal,
    pub authorization: Option<ResolvedAuthorization>,
    pub usage: Usage,
    pub request: Request,
    pub approval: Option<ApprovalSnapshot>,
    pub guards: Guards,
    pub trifecta: Trifecta,
}

/// The version of the inputs that this evaluator reads.
pub const POLICY_INPUT_VERSION: u64 = 1;

/// Decides. The terms are those that the input names, or none if it names none.
pub fn evaluate(input: &PolicyInput, terms: Option<&Terms>) -> Decision {
    decision(input, first_reason(input, terms))
}

/// The hashed fields of a decision.
#[derive(Serialize)]
struct HashedDecision<'a> {
    decision: Ruling,
    input: &'a PolicyInput,
    reason_code: &'a str,
    reason_codes_version: &'a str,
}

fn decision(input: &PolicyInput, reason: &Reason) -> Decision {
    // A failure reason of a gate never gets here; if one does, the action is denied.
    let ruling = reason.ruling.unwrap_or(Ruling::Denied);
    let hashed = HashedDecision {
        decision: ruling,
        reason_code: reason.code,
        reason_codes_version: REASON_CODES_VERSION,
        input,
    };
    Decision {
        decision: ruling,
        reason_code: reason.code(),
        reason_codes_version: REASON_CODES_VERSION.to_owned(),
        evaluation_hash: stable_hash_of(&hashed).expect("texts and bounded numbers have a canonical form"),
    }
}

/// Runs the 23 checks in their order; the first that applies gives the reason. Check 6, a missing authorization, is
/// here.
fn first_reason(input: &PolicyInput, terms: Option<&Terms>) -> &'static Reason {
    if let Some(reason) = guard_reason(input) {
        return reason;
    }
    let Some(terms) = terms.filter(|_| input.authorization.is_some()) else { return &reason::AUTHORIZATION_MISSING };
    permission(input, terms)
        .or_else(|| if input.request.is_spend() { money(input, terms) } else { None })
        .or_else(|| approval(input, terms))
        .unwrap_or(&reason::DEFAULT)
}

/// Checks 1 to 5: the guards, which need no authorization.
fn guard_reason(input: &PolicyInput) -> Option<&'static Reason> {
    let Guards { manifest_validation, loop_detected, ssrf_block, explicit, .. } = &input.guards;
    let families = [
        (manifest_validation, &reason::INVALID_SCHEMA),
        (loop_detected, &reason::NO_PROGRESS),
        (ssrf_block, &reason::PRIVATE_ADDRESS),
    ];
    for (given, first) in families {
        if let Some(given) = given {
            return Some(first.or_of_family(given));
        }
    }
    if let Some(explicit) = explicit {
        let known = Reason::of(&explicit.reason_code).filter(|reason| reason.ruling == Some(Ruling::Denied));
        return Some(known.unwrap_or(&reason::EXPLICIT_DENY));
    }
    let completes = input.trifecta.completed_by(&input.subject.labels);
    (completes && !input.subject.approval_ward).then_some(&reason::TRIFECTA)
}

/// Checks 7 to 15: mode, scope, validity and constraints of the authorization, and the recipient.
fn permission(input: &PolicyInput, terms: &Terms) -> Option<&'static Reason> {
    let PolicyInput { subject, at, .. } = input;
    let past = |time: Option<Timestamp>| time.is_some_and(|time| time <= *at);
    let refused =
        |name: &Option<String>, allowed: &dyn Fn(&str) -> bool| name.as_deref().is_some_and(|name| !allowed(name));
    let constraints = &terms.constraints;
    if matches!(terms.mode, AuthorizationMode::Unknown(_)) {
        Some(&reason::INVALID_AUTHORIZATION_MODE)
    } else if !input.principal.is_covered_by(terms) {
        Some(&reason::SCOPE_MISMATCH)
    } else if past(terms.revoked_at) {
        Some(&reason::AUTHORIZATION_REVOKED)
    } else if past(terms.expires_at) {
        Some(&reason::AUTHORIZATION_EXPIRED)
    } else if terms.mode == AuthorizationMode::Deny {
        Some(&reason::EXPLICIT_DENY)
    } else if refused(&subject.gate, &|gate| constraints.allows_gate(gate)) {
        Some(&reason::TOOL_NOT_ALLOWED)
    } else if refused(&subject.provider, &|provider| constraints.allows_provider(provider)) {
        Some(&reason::PROVIDER_NOT_ALLOWED)
    } else if refused(&subject.model, &|model| constraints.allows_model(model)) {
        Some(&reason::MODEL_NOT_ALLOWED)
    } else {
        let recipient = input.guards.recipient.as_deref()?;
        let suppressed = recipient == reason::SUPPRESSED_RECIPIENT.code;
        Some(if suppressed { &reason::SUPPRESSED_RECIPIENT } else { &reason::CONSENT_REQUIRED })
    }
}

/// Returns true if `counted` and `amount` together exceed `limit`; reaching it exactly is allowed.
fn exceeds(counted: [i64; 2], amount: i64, limit: i64) -> bool {
    counted.into_iter().chain([amount]).map(i128::from).sum::<i128>() > i128::from(limit)
}

/// Checks 16 to 22: currency, price, open attempts and the money limits.
fn money(input: &PolicyInput, terms: &Terms) -> Option<&'static Reason> {
    let PolicyInput { request, usage, .. } = input;
    let Request { amount, currency, priced } = *request;
    let cap = usage.run_cap.as_ref();
    if currency.is_some_and(|currency| currency != terms.currency) || (priced && currency.is_none()) {
        Some(&reason::CURRENCY_MISMATCH)
    } else if !priced && (terms.limits_money() || cap.is_some()) {
        Some(&reason::UNKNOWN_PRICE)
    } else if terms.max_per_call.is_some_and(|limit| amount > limit) {
        Some(&reason::PER_CALL_LIMIT)
    } else if usage.open_attempt.as_ref().is_some_and(OpenAttempt::blocks) {
        Some(&reason::RECONCILE_REQUIRED)
    } else if cap.is_some_and(|cap| exceeds([cap.spent, cap.reserved], amount, cap.limit)) {
        Some(&reason::RUN_LIMIT)
    } else if terms.max_per_day.is_some_and(|limit| exceeds([usage.day_spent, usage.day_reserved], amount, limit)) {
        Some(&reason::PER_DAY_LIMIT)
    } else if terms.max_total.is_some_and(|limit| exceeds([usage.spent, usage.reserved], amount, limit)) {
        Some(&reason::BUDGET_EXHAUSTED)
    } else {
        None
    }
}

/// Check 23: the approval of a person.
fn approval(input: &PolicyInput, terms: &Terms) -> Option<&'static Reason> {
    let amount = input.request.amount;
    let needed = if terms.mode == AuthorizationMode::Interactive && input.request.is_spend() {
        &reason::APPROVAL_REQUIRED_INTERACTIVE
    } else if terms.threshold.is_some_and(|threshold| amount > threshold) {
        &reason::APPROVAL_REQUIRED_OVER_THRESHOLD
    } else if input.subject.approval_ward {
        &reason::APPROVAL_REQUIRED_WARD
    } else {
        return None;
    };
    let Some(given) = input.approval.as_ref().filter(|given| given.subject_hash == input.subject.hash()) else {
        return Some(needed);
    };
    match given.state {
        ApprovalState::Refused => Some(&reason::APPROVAL_REFUSED),
        ApprovalState::Expired => Some(&reason::APPROVAL_EXPIRED),
        // The request was not decided in time; a decision in time stays valid.
        ApprovalState::Pending if given.expires_at <= input.at => Some(&reason::APPROVAL_EXPIRED),
        ApprovalState::Pending | ApprovalState::Cancelled => Some(needed),
        ApprovalState::Approved => {
            let granted = given.granted.unwrap_or(0);
            exceeds([given.spent, given.reserved], amount, granted).then_some(needed)
        }
    }
}

/// The difference between a stored decision and a new evaluation of its input and terms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayFault {
    #[error("the terms hash to {found}, the input names {named}")]
    Terms { named: Hash, found: Hash },
    #[error("the input names terms that are not there")]
    TermsMissing,
    #[error("the stored decision is {stored:?}, the repeated one {found:?}")]
    Decision { stored: Box<Decision>, found: Box<Decision> },
}

/// Evaluates a stored input again and compares the decision.
pub fn replay(input: &PolicyInput, terms: Option<&Terms>, stored: &Decision) -> Result<(), ReplayFault> {
    match (&input.authorization, terms) {
        (Some(named), Some(terms)) if terms.hash() != named.terms_hash => {
            return Err(ReplayFault::Terms { named: named.terms_hash, found: terms.hash() });
        }
        (Some(_), None) => return Err(ReplayFault::TermsMissing),
        (Some(_), Some(_)) | (None, _) => {}
    }
    let found = evaluate(input, terms);
    if found == *stored {
        Ok(())
    } else {
        Err(ReplayFault::Decision { stored: Box::new(stored.clone()), found: Box::new(found) })
    }
}
