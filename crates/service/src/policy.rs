//! Policy: lists the recorded decisions about a run, and repeats them.

use cantrip::canon::RunId;
use cantrip::policy::RedecideOutcome;
use cantrip::reply::{Call, GuardedReply, codes};
use serde_json::json;

use crate::Service;

impl Service {
    /// Lists the policy decisions about the calls of a run, oldest first.
    pub async fn policy_decisions(&self, run: RunId) -> GuardedReply {
        if let Err(refusal) = self.own_run(run).await {
            return self.refusal_reply("policy ls", refusal).await;
        }
        self.read_reply(format!("the policy decisions of {run}"), self.runtime().recorded_decisions(run)).await
    }

    /// Repeats the policy decision about every call of a run, each from its stored input. Succeeds if each gives the
    /// same decision with the same hash; else returns an error that names the first difference.
    pub async fn replay_policy(&self, run: RunId) -> GuardedReply {
        let found = match self.own_run(run).await {
            Ok(_) => self.runtime().redecide(run).await,
            Err(refusal) => Err(refusal),
        };
        let answered = self.runtime().guard().call(Call::surface("policy replay").run(run), |rb| async {
            match found {
                Ok(RedecideOutcome::Same { decisions }) => {
                    let data = json!({"decisions": decisions, "run_id": run});
                    rb.success(codes::verified(format!("policy of {run}"), decisions).data(data))
                }
                Ok(RedecideOutcome::Differs { call, at, detail }) => {
                    let data = json!({"call_id": call, "at": at, "run_id": run});
                    rb.error(codes::record_altered("decision", call, detail).data(data))
                }
                Err(refusal) => rb.refuse(refusal),
            }
        });
        answered.await
    }
}
