//! The input and the output of a predict, from the bodies that its receipt names.

use cantrip::loom::AnyLoom;
use cantrip::reply::Refusal;
use cantrip_contract::{ExampleSource, Receipt, ReceiptRow, SkipReason, SourceKind};

use super::gather::{LeftOut, RecordedCall, stored_value};

pub(super) async fn recorded_call(
    loom: &AnyLoom,
    row: &ReceiptRow,
    receipt: &Receipt,
) -> Result<Result<RecordedCall, LeftOut>, Refusal> {
    let gone = Ok(Err(Some(SkipReason::NoBody)));
    let Some(hash) = receipt.params_hash else { return gone };
    let Some(input) = stored_value(loom, hash).await? else { return gone };
    let output = match receipt.output_hash {
        Some(hash) => match stored_value(loom, hash).await? {
            Some(output) => Some(output),
            None => return gone,
        },
        None => None,
    };
    let source = ExampleSource { kind: SourceKind::Receipt, id: row.receipt_id.to_string(), line: None };
    Ok(Ok(RecordedCall { input, output, source }))
}
