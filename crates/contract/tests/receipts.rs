use cantrip_canon::json;
use cantrip_contract::{ChainFault, Receipt, ReceiptId, receipt_hash, verify_chain};
use serde_json::{Value, json as value};

/// The published example. Its ids are shorter than real ones, so it is hashed as a value.
fn published() -> Value {
    json::read(include_str!("published-receipt.json")).expect("JSON")
}

#[test]
fn the_hash_of_the_example_is_the_published_one() {
    let hash = receipt_hash(&published());
    assert_eq!(hash.to_string(), "sha256:8978fcad310a0ba5fb57e47eaa831e9e2ab624f5c0b1767a7d7f77e6004a4676");
    assert_eq!(ReceiptId::of(hash).to_string(), "rcpt_8978fcad310a0ba5fb57e47eaa831e9e");
}

/// The same receipt with ids of the real length.
fn real() -> Value {
    let mut body = published();
    body["predict_id"] = value!("prd_06cyf9k2vtd3m8x1q7hbz4n5rw");
    body["run_id"] = value!("run_06cyf9k2vtd3m8x1q7hbz4n5rw");
    body["loom_id"] = value!("loom_06cyf9k2vtd3m8x1q7hbz4n5rw");
    body["thread_id"] = value!("ent_06cyf9k2vtd3m8x1q7hbz4n5rw");
    body["last_turn_id"] = value!("turn_06cyf9k2vtd3m8x1q7hbz4n5rw");
    body
}

#[test]
fn a_receipt_has_every_field_of_the_example_under_its_name_and_no_other() {
    let receipt: Receipt = serde_json::from_value(real()).expect("a receipt");
    assert_eq!(receipt.body(), real());
    assert_eq!(receipt.hash(), receipt_hash(&real()));
    let mut unknown = real();
    unknown["more"] = value!(1);
    assert!(serde_json::from_value::<Receipt>(unknown).is_err());
}

fn chain(length: u64) -> Vec<(ReceiptId, Value)> {
    let mut before = Value::Null;
    let link = |seq| {
        let mut body = real();
        body["seq"] = value!(seq);
        body["prev_hash"] = before.clone();
        let hash = receipt_hash(&body);
        before = value!(hash);
        (ReceiptId::of(hash), body)
    };
    (1..=length).map(link).collect()
}

fn verified(chain: &[(ReceiptId, Value)]) -> Result<u64, ChainFault> {
    verify_chain(chain.iter().map(|(id, body)| (id, body)))
}

#[test]
fn a_chain_of_receipts_is_whole_or_tells_where_it_is_not() {
    let whole = chain(5);
    assert_eq!(verified(&whole), Ok(5));
    assert_eq!(verified(&[]), Ok(0));
    let mut edited = whole.clone();
    edited[2].1["budget"]["captured"] = value!(1);
    assert_eq!(verified(&edited), Err(ChainFault::Content { id: whole[2].0.clone() }));
    let mut missing = whole.clone();
    missing.remove(1);
    assert_eq!(verified(&missing), Err(ChainFault::Sequence { id: whole[2].0.clone(), found: 3, wanted: 2 }));
    // Replacing the edited receipt together with its id breaks the link of the next receipt.
    let mut forged = whole.clone();
    forged[2].1["status"] = value!("failed");
    forged[2].0 = ReceiptId::of(receipt_hash(&forged[2].1));
    assert_eq!(verified(&forged), Err(ChainFault::Link { id: whole[3].0.clone() }));
}

#[test]
fn the_schema_fits_the_example_and_misses_none_of_its_fields() {
    let mut served = published();
    let hash = cantrip_contract::receipt_hash(&served);
    served["receipt_id"] = value!(ReceiptId::of(hash));
    served["receipt_hash"] = value!(hash);
    served["signature"] = Value::Null;
    let schema = cantrip_contract::Schema::compile(cantrip_contract::receipt_schema()).expect("a sound schema");
    assert!(schema.violations(&served).is_empty(), "{:?}", schema.violations(&served));
    let fields: Vec<String> = served.as_object().expect("an object").keys().cloned().collect();
    for field in fields {
        let mut without = served.clone();
        without.as_object_mut().expect("an object").remove(&field);
        assert!(!schema.violations(&without).is_empty(), "{field} is required");
    }
    served["more"] = value!(1);
    assert!(!schema.violations(&served).is_empty());
}
