//! A published signature never changes.

use std::sync::Arc;

use cantrip::canon::IdSource;
use cantrip::loom::{AnyLoom, Contracts, MemoryLoom, PageRequest};
use cantrip::{MachineClock, MachineEntropy};
use cantrip_contract::{NoFiles, OriginRow, Provenance, Signature, SignatureOrigin};
use cantrip_ds::Catalog;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::{Value, json};

use crate::support::replied;

fn catalog() -> (Catalog, AnyLoom) {
    let loom = AnyLoom::new(MemoryLoom::new());
    let ids = Arc::new(IdSource::new(MachineEntropy));
    (Catalog::new(loom.clone(), Arc::new(MachineClock::new()), ids), loom)
}

const FILE: &str = r#"
namespace = "@me/text"
name = "Shout"
version = 1
program_template = "direct.v1"
instructions = "Say it louder."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
properties.text = { type = "string" }
[output_schema]
type = "object"
required = ["text"]
properties.text = { type = "string" }
"#;

fn shout(text: &str) -> Signature {
    Signature::parse(text, &NoFiles).unwrap()
}

#[tokio::test]
async fn what_comes_with_the_program_is_there_and_a_published_id_never_changes() {
    let (catalog, loom) = catalog();
    let first = catalog.all().await.unwrap();
    let names: Vec<String> = first.iter().map(|row| row.signature_id.to_string()).collect();
    assert!(names.contains(&"@cantrip/text/Classify.v1".to_owned()) && names.len() == 5, "{names:?}");
    let before = catalog.version().await.unwrap();
    let added = catalog.add(&shout(FILE), SignatureOrigin::File, "ann").await.unwrap();
    assert!(added.new);
    let again = catalog.add(&shout(FILE), SignatureOrigin::File, "bob").await.unwrap();
    assert!(!again.new && again.base == added.base);
    assert_ne!(catalog.version().await.unwrap(), before);
    // One changed character in any hashed part makes another signature.
    for (old, new) in [
        ("Say it louder.", "Say it louder!"),
        ("fence('text')", "fence('words')"),
        ("{ type = \"string\" }", "{ type = \"string\", minLength = 1 }"),
        ("version = 1", "version = 1\nprogram = { repair_attempts = 1 }"),
    ] {
        let refused = catalog.add(&shout(&FILE.replacen(old, new, 1)), SignatureOrigin::File, "ann").await.unwrap_err();
        let reply = replied(refused).await;
        assert_code(&reply, codes::IMMUTABLE);
        assert_eq!(reply.data()["reason"], "signature_conflict");
    }
    let described = FILE.replacen("version = 1", "version = 1\ndescription = \"Loud.\"", 1);
    assert!(!catalog.add(&shout(&described), SignatureOrigin::File, "ann").await.unwrap().new, "it is not hashed");
    let next = FILE.replacen("version = 1", "version = 2", 1).replacen("louder", "softer", 1);
    assert!(catalog.add(&shout(&next), SignatureOrigin::File, "ann").await.unwrap().new);
    assert_eq!(loom.signatures(PageRequest::FIRST).await.unwrap().items.len(), 7);
}

#[tokio::test]
async fn an_unknown_signature_or_artifact_is_refused() {
    let (catalog, _) = catalog();
    let refused = catalog.signature(&"@me/text/Nothing.v1".parse().unwrap()).await.unwrap_err();
    assert_code(&replied(refused).await, codes::CONTRACT_UNKNOWN);
    let none = "art_00000000000000000000000000000000".parse().unwrap();
    assert_code(&replied(catalog.artifact(&none).await.unwrap_err()).await, codes::CONTRACT_UNKNOWN);
}

#[tokio::test]
async fn an_artifact_that_carries_a_hash_must_carry_all_and_equal() {
    let (catalog, loom) = catalog();
    let signature = shout(FILE);
    catalog.add(&signature, SignatureOrigin::File, "ann").await.unwrap();
    let origin = |id| OriginRow::new(id, Provenance::Manual, "ann", "2026-02-19T02:00:00.000Z".parse().unwrap());
    let hashes = signature.hashes();
    let all = [
        ("schema_hash", hashes.schema_hash.to_string()),
        ("prompt_hash", hashes.prompt_hash.to_string()),
        ("program_hash", hashes.program_hash.to_string()),
    ];
    let wrong = hashes.schema_hash.to_string().replace("sha256:", "sha256:0")[..71].to_owned();
    for left_out in 1..8_u32 {
        let mut given = json!({"instructions": "Louder still."});
        for (bit, (key, hash)) in (0..).zip(&all) {
            if left_out & (1 << bit) == 0 {
                given[*key] = json!(hash);
            }
        }
        let none = left_out == 7;
        let kept = catalog.add_artifact(&given, &signature, origin).await;
        match kept {
            Ok(artifact) => assert!(none && artifact.hashes() == hashes),
            Err(refused) => {
                assert!(!none);
                let reply = replied(refused).await;
                assert_code(&reply, codes::ARTIFACT_INCOMPATIBLE);
                let key = reply.data()["key"].as_str().unwrap().to_owned();
                assert_eq!(given.get(&key), None, "it names a key that is missing");
            }
        }
    }
    for (key, _) in &all {
        let mut given = json!({"instructions": "Louder still."});
        for (key, hash) in &all {
            given[*key] = json!(hash);
        }
        given[*key] = json!(wrong);
        let reply = replied(catalog.add_artifact(&given, &signature, origin).await.unwrap_err()).await;
        assert_code(&reply, codes::ARTIFACT_INCOMPATIBLE);
        assert_eq!(reply.data()["key"], Value::from(*key));
    }
    let given = json!({"instructions": "Louder still."});
    let again = catalog.add_artifact(&given, &signature, origin).await.unwrap();
    assert_eq!(loom.artifacts(Some(signature.id().clone()), PageRequest::FIRST).await.unwrap().items.len(), 2);
    assert_eq!(catalog.artifact(&again.id()).await.unwrap(), again);
}
