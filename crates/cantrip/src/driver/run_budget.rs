//! The budget of a single run.

use cantrip_canon::{Money, RunId, kinds};
use cantrip_circle::Wards;
use cantrip_loom::{AppendOutcome, Conflict, Journal, Step, StepId};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{AuthorizationMode, AuthorizationRef, Authorize, Constraints, Operation, Payer, Scope, Terms};

use super::Runtime;
use crate::funds::owner_of;
use crate::runtime_error::store_refusal;

impl Runtime {
    /// Limits what a run may spend: for the local owner by an authorization, for all other owners by the returned
    /// wards. Only the runtime grants money: if the budget of every owner were a grant, owners would grant money to
    /// themselves.
    pub(crate) async fn budget_wards(&self, run: RunId, budget: Option<Money>) -> Result<Wards, Refusal> {
        let Some(budget) = budget else { return Ok(Wards::default()) };
        if owner_of(self.actor())? == Payer::local() {
            self.grant(run, budget).await?;
            return Ok(Wards::default());
        }
        Ok(Wards { max_cost: vec![budget], ..Wards::default() })
    }

    /// Authorizes this run alone to spend this amount in total. It is the most specific authorization, so nothing else
    /// pays for the run, now or when it is resumed.
    async fn grant(&self, run: RunId, budget: Money) -> Result<(), Refusal> {
        let now = self.now().wall;
        let authorization = AuthorizationRef::Issued(self.ids().next::<kinds::Authorization>(now));
        let terms = Terms {
            owner: Payer::local(),
            scope: Scope { run_id: Some(run.to_string()), ..Scope::default() },
            mode: AuthorizationMode::DelegatedBudget,
            currency: budget.currency(),
            max_total: Some(budget.micros()),
            max_per_call: None,
            max_per_day: None,
            threshold: None,
            constraints: Constraints::default(),
            issued_at: now,
            expires_at: None,
            revoked_at: None,
        };
        let (actor, reason) = (self.actor().as_str().to_owned(), "the budget of one cast".to_owned());
        let issue = Authorize { authorization, terms, actor, reason, at: now };
        let id = StepId::new(format!("change-{authorization}")).map_err(|_| codes::crash())?;
        let step = Step::outside_runs(id).money(Operation::Authorize(Box::new(issue)));
        match self.loom().append(step).await.map_err(|error| store_refusal(&error))? {
            AppendOutcome::Committed(_) => Ok(()),
            AppendOutcome::Conflict(Conflict::Money { fault: cantrip_spend::LedgerFault::Terms(fault), .. }) => {
                Err(codes::config_invalid("budget", budget.to_string(), fault.to_string()).into())
            }
            AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }
}
