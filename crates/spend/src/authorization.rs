//! Who may spend how much, on what, and until when? Terms are written once; a change is a new revision of them.

use std::fmt;
use std::str::FromStr;

use cantrip_canon::{Currency, Hash, Money, MoneyFault, Timestamp, stable_hash};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::limits::{CONSTRAINT_BYTES_MAX, CONSTRAINT_ENTRIES_MAX, OWNER_BYTES_MAX, SCOPE_ID_BYTES_MAX};
use crate::{AuthorizationRef, Counters};

/// The owner of the money: `user:X`, `guest:X`, `service:X`, `local` or `system`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Payer(String);

impl Payer {
    /// The person at this machine.
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// Parses an owner as people write it: a bare name is a user, so `ann` is `user:ann`.
    pub fn from_name(name: &str) -> Result<Self, TermsFault> {
        match name {
            "local" | "system" => name.parse(),
            _ if name.contains(':') => name.parse(),
            _ => format!("user:{name}").parse(),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the owner may spend without limits, because no person is behind it who could be asked.
    fn may_be_unlimited(&self) -> bool {
        matches!(self.0.as_str(), "local" | "system") || self.0.starts_with("service:")
    }
}

impl fmt::Display for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Payer {
    type Err = TermsFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = ["user:", "guest:", "service:"].iter().any(|kind| {
            text.strip_prefix(kind)
                .is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()))
        });
        if (named || matches!(text, "local" | "system")) && text.len() <= OWNER_BYTES_MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(TermsFault::Owner(text.chars().take(64).collect()))
        }
    }
}

cantrip_canon::string_conversions!(Payer);

/// The scope of an authorization. Null matches any value. The ids are plain values: deleting the named object can never
/// widen a grant.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    pub run_id: Option<String>,
    /// The entity whose conversation the caller is in.
    pub thread_id: Option<String>,
    /// The agent: the name of its spell.
    pub autopilot_id: Option<String>,
}

/// The conditions under which the money may be spent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum AuthorizationMode {
    /// Never spend.
    Deny,
    /// Each spend waits for a person.
    Interactive,
    /// Unattended, within limits.
    DelegatedBudget,
    /// Unattended, within limits; a person must approve amounts above the threshold.
    DelegatedBudgetWithThreshold,
    /// For owners without a person behind them; limits are optional.
    System,
    /// A mode that a later version wrote: nothing is spent under it.
    Unknown(String),
}

impl AuthorizationMode {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Deny => "deny",
            Self::Interactive => "interactive",
            Self::DelegatedBudget => "delegated_budget",
            Self::DelegatedBudgetWithThreshold => "delegated_budget_with_threshold",
            Self::System => "system",
            Self::Unknown(name) => name,
        }
    }
}

impl From<String> for AuthorizationMode {
    fn from(name: String) -> Self {
        match name.as_str() {
            "deny" => Self::Deny,
            "interactive" => Self::Interactive,
            "delegated_budget" => Self::DelegatedBudget,
            "delegated_budget_with_threshold" => Self::DelegatedBudgetWithThreshold,
            "system" => Self::System,
            _ => Self::Unknown(name),
        }
    }
}

impl From<AuthorizationMode> for String {
    fn from(mode: AuthorizationMode) -> Self {
        mode.as_str().to_owned()
    }
}

/// The gates, providers and models that may be paid for. An absent list allows all, an empty one nothing; an entry is
/// exact or ends in `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constraints {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates_allow: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates_deny: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers_allow: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models_allow: Option<Vec<String>>,
}

fn matches(entries: &[String], name: &str) -> bool {
    entries.iter().any(|entry| match entry.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => entry == name,
    })
}

impl Constraints {
    /// Returns true if the gate is allowed. `done` always is: it ends a cast with an answer and has no outside effect.
    pub fn allows_gate(&self, name: &str) -> bool {
        if name == "done" {
            return true;
        }
        allows(self.gates_allow.as_deref(), name) && !self.gates_deny.as_deref().is_some_and(|deny| matches(deny, name))
    }

    pub fn allows_provider(&self, name: &str) -> bool {
        allows(self.providers_allow.as_deref(), name)
    }

    pub fn allows_model(&self, name: &str) -> bool {
        allows(self.models_allow.as_deref(), name)
    }

    fn lists(&self) -> impl Iterator<Item = &Vec<String>> {
        [&self.gates_allow, &self.gates_deny, &self.providers_allow, &self.models_allow].into_iter().flatten()
    }
}

fn allows(entries: Option<&[String]>, name: &str) -> bool {
    entries.is_none_or(|entries| matches(entries, name))
}

/// The terms of an authorization. Owner, scope and currency never change; any other change is a new revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    pub owner: Payer,
    pub scope: Scope,
    pub mode: AuthorizationMode,
    pub currency: Currency,
    /// In micros, like all limits here.
    pub max_total: Option<i64>,
    pub max_per_call: Option<i64>,
    pub max_per_day: Option<i64>,
    pub threshold: Option<i64>,
    pub constraints: Constraints,
    pub issued_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

/// The reason why terms are not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TermsFault {
    #[error("{0:?} is not an owner: write user:NAME, guest:NAME, service:NAME, local or system")]
    Owner(String),
    #[error(
        "{0:?} is not a mode: write deny, interactive, delegated_budget, delegated_budget_with_threshold or system"
    )]
    Mode(String),
    #[error("mode {mode} needs {field}")]
    Missing { mode: String, field: &'static str },
    #[error("a threshold belongs to mode delegated_budget_with_threshold, not to {mode}")]
    Threshold { mode: String },
    #[error("mode system is for the owners system, service:NAME and local, not for {owner}")]
    Unlimited { owner: Payer },
    #[error("{field}: {fault}")]
    Limit { field: &'static str, fault: MoneyFault },
    #[error("it would expire at {at}, before it is issued")]
    Expired { at: Timestamp },
    #[error("{field} is too long, or has an entry that is too long")]
    TooLong { field: &'static str },
    #[error("a revision cannot change {field}")]
    Fixed { field: &'static str },
}

impl Terms {
    /// The terms of `auth_local`, which every store of a single user has from the start. They are the same everywhere.
    pub fn local() -> Self {
        Self {
            owner: Payer::local(),
            scope: Scope::default(),
            mode: AuthorizationMode::System,
            currency: Currency::USD,
            max_total: None,
            max_per_call: None,
            max_per_day: None,
            threshold: None,
            constraints: Constraints::default(),
            issued_at: Timestamp::EPOCH,
            expires_at: None,
            revoked_at: None,
        }
    }

    /// The canonical text that is stored and hashed.
    pub fn canonical(&self) -> String {
        cantrip_canon::json::canonical(&self.value()).expect("texts and bounded numbers have a canonical form")
    }

    fn value(&self) -> serde_json::Value {
        json!({
            "v": 1, "kind": "terms", "owner": self.owner, "scope": self.scope, "mode": self.mode,
            "currency": self.currency, "max_total": self.max_total, "max_per_call": self.max_per_call,
            "max_per_day": self.max_per_day, "threshold": self.threshold, "constraints": self.constraints,
            "issued_at": self.issued_at, "expires_at": self.expires_at, "revoked_at": self.revoked_at,
        })
    }

    /// The hash by which a decision names the terms.
    pub fn hash(&self) -> Hash {
        stable_hash(&self.value()).expect("texts and bounded numbers have a canonical form")
    }

    /// Returns true if any money limit is set.
    pub(crate) fn limits_money(&self) -> bool {
        self.max_total.is_some() || self.max_per_call.is_some() || self.max_per_day.is_some()
    }

    /// Returns the reason why these terms may not be written.
    pub fn check(&self) -> Result<(), TermsFault> {
        if let AuthorizationMode::Unknown(name) = &self.mode {
            return Err(TermsFault::Mode(name.chars().take(64).collect()));
        }
        let limits = [
            ("max_total", self.max_total),
            ("max_per_call", self.max_per_call),
            ("max_per_day", self.max_per_day),
            ("threshold", self.threshold),
        ];
        for (field, limit) in limits {
            if let Some(Err(fault)) = limit.map(|micros| Money::new(micros, self.currency)) {
                return Err(TermsFault::Limit { field, fault });
            }
        }
        let mode = || self.mode.as_str().to_owned();
        let delegated =
            matches!(self.mode, AuthorizationMode::DelegatedBudget | AuthorizationMode::DelegatedBudgetWithThreshold);
        if delegated && self.max_total.is_none() {
            return Err(TermsFault::Missing { mode: mode(), field: "max_total" });
        }
        match (self.mode == AuthorizationMode::DelegatedBudgetWithThreshold, self.threshold) {
            (true, None) => return Err(TermsFault::Missing { mode: mode(), field: "threshold" }),
            (false, Some(_)) => return Err(TermsFault::Threshold { mode: mode() }),
            (true, Some(_)) | (false, None) => {}
        }
        if self.mode == AuthorizationMode::System && !self.owner.may_be_unlimited() {
            return Err(TermsFault::Unlimited { owner: self.owner.clone() });
        }
        if let Some(at) = self.expires_at.filter(|at| *at < self.issued_at) {
            return Err(TermsFault::Expired { at });
        }
        let scopes = [&self.scope.run_id, &self.scope.thread_id, &self.scope.autopilot_id];
        if scopes.into_iter().flatten().any(|id| id.is_empty() || id.len() > SCOPE_ID_BYTES_MAX) {
            return Err(TermsFault::TooLong { field: "scope" });
        }
        let long = |list: &Vec<String>| {
            list.len() > CONSTRAINT_ENTRIES_MAX || list.iter().any(|entry| entry.len() > CONSTRAINT_BYTES_MAX)
        };
        if self.constraints.lists().any(long) {
            return Err(TermsFault::TooLong { field: "constraints" });
        }
        Ok(())
    }

    /// Returns the reason why these terms cannot follow `before`.
    pub fn check_revision(&self, before: &Self) -> Result<(), TermsFault> {
        let fixed = [
            ("owner", self.owner == before.owner),
            ("scope", self.scope == before.scope),
            ("currency", self.currency == before.currency),
            ("issued_at", self.issued_at == before.issued_at),
        ];
        if let Some((field, _)) = fixed.into_iter().find(|(_, same)| !same) {
            return Err(TermsFault::Fixed { field });
        }
        self.check()
    }
}

/// One revision of an authorization's terms, with its author and reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermsRevision {
    /// The number of the revision, from 1.
    pub revision: u64,
    pub terms: Terms,
    pub actor: String,
    pub reason: String,
    pub at: Timestamp,
}

/// The current state of an authorization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorization {
    pub id: AuthorizationRef,
    /// The newest revision.
    pub agreement: TermsRevision,
    pub totals: Counters,
    pub created_at: Timestamp,
}

impl Authorization {
    /// An authorization with nothing spent yet.
    pub fn new(id: AuthorizationRef, terms: Terms, actor: String, reason: String, at: Timestamp) -> Self {
        let agreement = TermsRevision { revision: 1, terms, actor, reason, at };
        Self { id, agreement, totals: Counters::default(), created_at: at }
    }

    /// The authorization `auth_local`.
    pub fn local() -> Self {
        let reason = "every store of a single user has it".to_owned();
        Self::new(AuthorizationRef::Local, Terms::local(), "cantrip".to_owned(), reason, Timestamp::EPOCH)
    }

    pub fn terms(&self) -> &Terms {
        &self.agreement.terms
    }

    /// The rest of the total: negative after an overage, none if there is no total.
    pub fn remaining(&self) -> Option<i64> {
        let limit = self.terms().max_total?;
        Some(limit.saturating_sub(self.totals.spent).saturating_sub(self.totals.reserved))
    }
}
