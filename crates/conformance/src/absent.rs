//! The changes that a case may ask for and that no function can make.
//!
//! A call cannot be changed and a turn cannot be deleted, because the public API has no function for either. The
//! examples beside `Cantrip`, `Journal` and `Service` show that such a request does not compile. A case is data, so it
//! can ask for the change all the same. The runner answers it with the reply of the specification, and compares the
//! loom before and after it like that of every refused step. Functions of the service that always refuse were
//! rejected: they would be an API for what must not exist.

use cantrip_canon::TurnId;
use cantrip_loom::CantripId;
use cantrip_reply::{Call, Guard, GuardedReply, Refusal, codes};
use serde_json::{Value, json};

/// Refuses a change of a cantrip's call: a cantrip with another call is another cantrip.
pub(crate) async fn amend_call(guard: &Guard, cantrip: CantripId, changes: &Value) -> GuardedReply {
    let refusal = codes::immutable("call").data(json!({"cantrip_id": cantrip, "changes": changes}));
    refuse(guard, "amend_call", refusal.into()).await
}

/// Refuses to delete a turn: records are append-only.
pub(crate) async fn delete_turn(guard: &Guard, turn: TurnId) -> GuardedReply {
    let refusal = codes::append_only("delete").data(json!({"turn_id": turn}));
    refuse(guard, "delete_turn", refusal.into()).await
}

async fn refuse(guard: &Guard, name: &str, refusal: Refusal) -> GuardedReply {
    guard.call(Call::surface(name), |rb| async { rb.refuse(refusal) }).await
}

#[cfg(test)]
mod tests {
    use cantrip_canon::Timestamp;
    use cantrip_reply::testing::{assert_code, guard};

    use super::*;

    #[tokio::test]
    async fn a_change_that_no_function_makes_is_refused_with_the_code_of_the_specification() {
        let cantrip: CantripId = "can_0123456789abcdef0123456789abcdef".parse().expect("the id of a cantrip");
        let amended = amend_call(&guard(), cantrip, &json!({"temperature": 1.5})).await;
        assert_code(&amended.reply, codes::IMMUTABLE);
        assert_eq!(amended.reply.message(), "call is immutable");
        let turn = TurnId::from_parts(Timestamp::EPOCH, [7; 10]);
        let deleted = delete_turn(&guard(), turn).await;
        assert_code(&deleted.reply, codes::APPEND_ONLY);
        assert_eq!(deleted.reply.message(), "loom is append-only: delete refused");
        assert_eq!(deleted.reply.data()["turn_id"], turn.to_string());
    }
}
