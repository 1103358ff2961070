use cantrip_contract::{Artifact, ArtifactFault, CompiledId, built_in};
use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::signatures::{classify, refused};

const HASHES: [&str; 3] = ["schema_hash", "prompt_hash", "program_hash"];

#[test]
fn without_hashes_they_are_the_signatures_and_the_same_content_is_one_artifact() {
    let signature = classify();
    let given = json!({
        "instructions": "Choose the one label that fits the text best.",
        "demos": signature.base_artifact().content()["demos"],
    });
    let artifact = Artifact::from_value(&given, &signature).expect("sound");
    assert_eq!(artifact.id(), signature.base_artifact().id());
    let other = json!({"instructions": "Another way.", "params": {"temperature": 0.5}});
    let other = Artifact::from_value(&other, &signature).expect("sound");
    assert_ne!(other.id(), artifact.id());
    let whole = Artifact::from_value(&other.content(), &signature).expect("sound");
    assert_eq!(whole, other);
    assert_eq!(Artifact::from_stored(&other.content()).expect("kept"), other);
}

#[test]
fn any_hash_that_is_missing_or_wrong_is_named() {
    let signature = classify();
    let whole = signature.base_artifact().content();
    // All ways to leave out or falsify one to three of the hashes, except leaving out all of them.
    for pattern in 1..27_u32 {
        let ways: Vec<u32> = (0..3).map(|index| pattern / 3_u32.pow(index) % 3).collect();
        let mut value = whole.clone();
        for (key, way) in HASHES.iter().zip(&ways) {
            match way {
                1 => value[*key] = json!(format!("sha256:{}", "0".repeat(64))),
                2 => {
                    value.as_object_mut().unwrap().remove(*key);
                }
                _ => {}
            }
        }
        let given = Artifact::from_value(&value, &signature);
        if ways == [2, 2, 2] {
            given.expect("none at all are computed");
            continue;
        }
        let first = HASHES[ways.iter().position(|way| *way != 0).unwrap()];
        match given {
            Err(ArtifactFault::Unequal { key, .. }) => assert_eq!(key, first, "{ways:?}"),
            other => panic!("{ways:?}: {other:?}"),
        }
    }
}

#[test]
fn another_signatures_artifact_does_not_fit() {
    let (signature, other) = (classify(), &built_in()[2]);
    let fault = Artifact::from_value(&other.base_artifact().content(), &signature).expect_err("another signature's");
    let reply = refused(fault.refusal("art_x", signature.id()), codes::ARTIFACT_INCOMPATIBLE.any());
    assert_eq!(reply.data()["key"], "signature_id");
    assert!(matches!(
        other.base_artifact().check_compatible(&signature),
        Err(ArtifactFault::Unequal { key: "signature_id", .. })
    ));
}

#[test]
fn demos_are_checked_again_and_size_and_strategy_are_bounded() {
    let signature = classify();
    let bad = json!({"instructions": "x", "demos": [{"input": {"text": "t", "labels": ["a"]}, "output": {}}]});
    assert!(
        matches!(Artifact::from_value(&bad, &signature), Err(ArtifactFault::Shape { key, .. }) if key.starts_with("demos/0/input"))
    );
    let large = json!({"instructions": "x".repeat(300_000)});
    assert!(matches!(Artifact::from_value(&large, &signature), Err(ArtifactFault::Large(_))));
    let strategy = json!({"instructions": "x", "strategy": "direct.v2"});
    assert!(matches!(Artifact::from_value(&strategy, &signature), Err(ArtifactFault::Strategy(_))));
    let key = json!({"instructions": "x", "instuctions": "y"});
    assert!(matches!(Artifact::from_value(&key, &signature), Err(ArtifactFault::Shape { .. })));
    assert!(matches!(Artifact::from_value(&Value::Null, &signature), Err(ArtifactFault::Shape { .. })));
}

#[test]
fn an_id_is_read_strictly() {
    for wrong in
        ["art_", "art_FA314739A6AB692B5CD3D96708665E89", "art_fa31", "rcpt_fa314739a6ab692b5cd3d96708665e89", ""]
    {
        assert!(wrong.parse::<CompiledId>().is_err(), "{wrong}");
    }
}
