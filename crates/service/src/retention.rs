//! Retention: removing the records of old runs, by an explicit policy.
//!
//! Nothing else deletes history. Every removal leaves a row with its actor, time, reason and policy, and with the hash
//! from which the chain of the run continues.

use cantrip::canon::RetentionId;
use cantrip::loom::{Error, Journal, PageRequest, Removal, RetentionOrder, RetentionPlan, RetentionPolicy};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::store_refusal;
use serde_json::json;

use crate::Service;
use crate::spend::ChangeReason;

impl Service {
    /// Returns the runs that a policy would remove now. Nothing is written.
    pub async fn retention_plan(&self, policy: &RetentionPolicy) -> GuardedReply {
        self.guarded_reply("retention", async {
            let plan = self.plan_retention(policy).await?;
            let records: u64 = plan.runs.iter().map(|run| run.records).sum();
            let value = json!({"policy": policy, "runs": plan.runs, "records": records, "kept": plan.kept});
            Ok(codes::read("retention plan").value(value))
        })
        .await
    }

    async fn plan_retention(&self, policy: &RetentionPolicy) -> Result<RetentionPlan, Refusal> {
        self.check_may_remove()?;
        let now = self.clock.now().wall;
        let planned = self.runtime().loom().retention_plan(policy.clone(), now).await;
        planned.map_err(|error| store_refusal(&error))
    }

    /// Removes the runs that a policy covers, one by one, and records each removal.
    pub async fn apply_retention(&self, policy: &RetentionPolicy, because: ChangeReason) -> GuardedReply {
        self.guarded_reply("retention", async {
            because.check()?;
            let plan = self.plan_retention(policy).await?;
            let at = self.clock.now().wall;
            let retention_id: RetentionId = self.ids.next(at);
            let ChangeReason { actor, reason } = because;
            let order = RetentionOrder { retention_id, policy: policy.clone(), actor, reason, at };
            let (mut removed, mut skipped): (Vec<Removal>, u64) = (Vec::new(), 0);
            for run in &plan.runs {
                match self.runtime().loom().remove(order.clone(), run.run_id).await {
                    Ok(removal) => removed.push(removal),
                    // The run changed since the plan was made: it was forked, or removed by another process.
                    Err(Error::InvalidStep { .. }) => skipped += 1,
                    Err(error) => return Err(store_refusal(&error)),
                }
            }
            let records: u64 = removed.iter().map(|removal| removal.records).sum();
            let data = json!({
                "retention_id": retention_id, "policy": policy, "runs": removed.len(), "records": records,
                "kept": plan.kept, "skipped": skipped, "removals": removed,
            });
            Ok(codes::changed("retention", retention_id.to_string(), "applied").data(data))
        })
        .await
    }

    /// Returns the recorded removals, oldest first.
    pub async fn removals(&self, page: PageRequest) -> GuardedReply {
        self.guarded_reply("removals", async {
            self.check_may_remove()?;
            let listed = self.runtime().loom().removals(page).await.map_err(|error| store_refusal(&error))?;
            Ok(codes::read("removals").value(listed))
        })
        .await
    }

    /// Checks that this service is unrestricted: an owner who could remove history would remove records that others
    /// rely on.
    fn check_may_remove(&self) -> Result<(), Refusal> {
        if self.is_scoped() {
            return Err(codes::not_authorized("a retention", "only the owner local can delete records").into());
        }
        Ok(())
    }
}
