//! How is the refusal of a cast restored if another process ended the cast, or an earlier record has its end?

use cantrip_canon::Money;
use cantrip_loom::RecordedError;
use cantrip_reply::{AnyCode, Refusal, codes};
use serde_json::{Map, Value, json};

/// Restores a refusal from a recorded error: its code, with the fields parsed from its message.
pub fn refusal(fault: &RecordedError) -> Refusal {
    refusal_with(fault, &Value::Null)
}

/// Like [`refusal`], with additional data for its reader.
pub(super) fn refusal_with(fault: &RecordedError, data: &Value) -> Refusal {
    let known = fault.mark.known().filter(|code| !code.reply_type().is_success());
    let fields = known.map(|code| {
        let row = code.row();
        fields_of(row.message, &fault.message).map(|fields| with_money(code, fields)).unwrap_or_else(|| {
            // If the message does not fit the code's template, perhaps because of another version, it fills every
            // field.
            row.fields.iter().map(|field| ((*field).to_owned(), fault.message.clone().into())).collect()
        })
    });
    let told = |mut fields: Map<String, Value>| {
        for (key, value) in data.as_object().into_iter().flatten() {
            fields.entry(key).or_insert_with(|| value.clone());
        }
        if let Some(reason) = &fault.reason_code {
            fields.insert("reason_code".to_owned(), reason.as_str().into());
        }
        Refusal::dynamic(&fault.mark.code, fields)
    };
    match fields.map(told) {
        Some(Ok(refusal)) => refusal,
        Some(Err(_)) | None => codes::crash().into(),
    }
}

/// Converts the amounts of a refusal about money from text to money.
fn with_money(code: AnyCode, mut fields: Map<String, Value>) -> Map<String, Value> {
    let amounts: &[&str] = if code == codes::BUDGET_SPENT.any() {
        &["needed", "remaining"]
    } else if code == codes::PER_CALL.any() || code == codes::PER_DAY.any() {
        &["needed", "limit"]
    } else {
        &[]
    };
    for name in amounts {
        if let Some(field) = fields.get_mut(*name)
            && let Some(amount) = field.as_str().and_then(|text| text.parse::<Money>().ok())
        {
            *field = json!(amount);
        }
    }
    fields
}

/// Returns the fields that fill a template, if the text was made with it: filling them in again gives the same text.
fn fields_of(template: &str, text: &str) -> Option<Map<String, Value>> {
    let mut fields = Map::new();
    let (before, mut places) = template.split_once('{').unwrap_or((template, ""));
    let mut rest = text.strip_prefix(before)?;
    while let Some((field, after)) = places.split_once('}') {
        let (literal, next) = after.split_once('{').unwrap_or((after, ""));
        // The last field extends to the end of the text; a field before it ends where the literal text behind it
        // begins.
        let end = match next {
            "" => rest.len().checked_sub(literal.len()).filter(|end| rest.get(*end..) == Some(literal))?,
            _ => rest.find(literal).filter(|_| !literal.is_empty())?,
        };
        fields.insert(field.to_owned(), rest[..end].into());
        rest = &rest[end + literal.len()..];
        places = next;
    }
    rest.is_empty().then_some(fields)
}

#[cfg(test)]
mod tests {
    use cantrip_reply::testing::guarded;

    use super::*;

    #[test]
    fn the_amounts_of_a_recorded_refusal_are_money() {
        for (code, message, second) in [
            (codes::BUDGET_SPENT.any(), "0.09 USD is more than the 0.03 USD left of auth_local", "remaining"),
            (codes::PER_CALL.any(), "0.09 USD is more than 0.03 USD for one call", "limit"),
            (codes::PER_DAY.any(), "0.09 USD would pass 0.03 USD for the day", "limit"),
        ] {
            let reply = guarded(|rb| rb.refuse(refusal(&RecordedError::new(code, message)))).reply;
            assert_eq!((reply.code(), reply.message().as_str()), (code, message));
            assert_eq!(reply.data()["needed"], json!({"micros": 90_000, "currency": "USD"}));
            assert_eq!(reply.data()[second], json!({"micros": 30_000, "currency": "USD"}));
        }
    }

    #[test]
    fn a_recorded_fault_is_told_in_the_words_it_was_recorded_with() {
        for (code, message) in [
            (codes::LOOP_DETECTED.any(), "the same ping-pong came 3 times"),
            (codes::CRYSTAL_REJECTED.any(), "local/m@http://h/v1 rejected the request: 404 no: such {model}"),
            (codes::CRYSTAL_EMPTY.any(), "crystal returned neither content nor tool_calls"),
        ] {
            let fault = RecordedError::new(code, message);
            let reply = guarded(|rb| rb.refuse(refusal(&fault))).reply;
            assert_eq!((reply.code(), reply.message().as_str()), (code, message));
        }
    }
}
