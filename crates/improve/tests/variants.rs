//! Variants of spells: what they change, and how they are named.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_contract::{CandidateId, SpellVariant, VariantPatch};
use cantrip_improve::compile::{BuiltCandidate, Content, Slot, Space};
use serde_json::{Map, Value, json};

const BASE: &str = "can_0123456789abcdef0123456789abcdef";
const CALL: &str = "You do jobs.";
const READ: &str = "Reads a file.";

fn wards() -> Map<String, Value> {
    json!({"max_turns": 3}).as_object().cloned().unwrap()
}

fn space() -> Space {
    let gates = [("read".to_owned(), READ.to_owned()), ("echo".to_owned(), "Says it.".to_owned())];
    Space::of_spell("worker", BASE.parse().unwrap(), CALL, &gates).with_wards(&[wards()]).unwrap()
}

fn built(space: &Space, content: &Content) -> BuiltCandidate {
    space.build(content).unwrap()
}

/// Returns the content with these values; an absent one is the spell's own.
fn content(space: &Space, call: Option<&str>, read: Option<&str>, choice: usize) -> Content {
    let with = |content: Content, slot: Slot, text: Option<&str>| match text {
        Some(text) => space.with_text(&content, &slot, text).unwrap(),
        None => content,
    };
    let content = with(space.base().clone(), Slot::Call, call);
    let content = with(content, Slot::Gate("read".to_owned()), read);
    space.with_choice(&content, choice)
}

#[test]
fn a_variant_names_what_differs_from_the_spell_and_nothing_else() {
    let space = space();
    let slots: Vec<String> = space.slots().iter().map(ToString::to_string).collect();
    assert_eq!(slots, ["call", "gate:read", "gate:echo", "wards"]);
    let mut ids = BTreeSet::new();
    for call in [None, Some("You rest.")] {
        for read in [None, Some("Reads slowly.")] {
            for choice in [0, 1] {
                let built = built(&space, &content(&space, call, read, choice));
                let expected = VariantPatch {
                    call: call.map(str::to_owned),
                    gates: read.map(|text| ("read".to_owned(), text.to_owned())).into_iter().collect(),
                    wards: if choice == 1 { wards() } else { Map::new() },
                };
                match &built {
                    BuiltCandidate::Variant(variant) => {
                        assert_eq!(variant.patch, expected);
                        assert_eq!((variant.spell.as_str(), variant.base.as_str()), ("worker", BASE));
                        let read = SpellVariant::from_value(&variant.content()).unwrap();
                        assert_eq!((read.id(), &read), (variant.id(), &**variant));
                    }
                    BuiltCandidate::Spell(id) => {
                        assert!(expected.is_empty(), "the spell itself is no variant");
                        assert_eq!(id.as_str(), BASE);
                    }
                    BuiltCandidate::Artifact(artifact) => panic!("{artifact:?}"),
                }
                ids.insert(built.id());
            }
        }
    }
    assert_eq!(ids.len(), 8, "each of them has its own id");
    // A value that is set to what the spell has anyway is no change.
    let same = content(&space, Some(CALL), Some(READ), 0);
    assert_eq!(built(&space, &same).id().as_str(), BASE);
}

#[test]
fn the_order_in_which_slots_were_changed_makes_no_other_variant() {
    let space = space();
    let (call, gate) = (Slot::Call, Slot::Gate("read".to_owned()));
    let first = space.with_text(space.base(), &call, "A").and_then(|content| space.with_text(&content, &gate, "B"));
    let second = space.with_text(space.base(), &gate, "B").and_then(|content| space.with_text(&content, &call, "A"));
    assert_eq!(built(&space, &first.unwrap()).id(), built(&space, &second.unwrap()).id());
    // Another base, or another spell, makes another variant of the same patch.
    let patch = VariantPatch { call: Some("A".to_owned()), gates: BTreeMap::new(), wards: Map::new() };
    let named = |spell: &str, base: &str| -> CandidateId {
        SpellVariant { spell: spell.to_owned(), base: base.to_owned(), patch: patch.clone() }.id()
    };
    let ids = BTreeSet::from([
        named("worker", BASE),
        named("other", BASE),
        named("worker", "can_00000000000000000000000000000000"),
    ]);
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_stored_variant_is_read_strictly() {
    let whole = json!({"v": 1, "kind": "variant", "spell": "worker", "base": BASE,
        "patch": {"call": {}, "gates": {"read": {"description": "R"}}, "wards": {}}});
    assert!(SpellVariant::from_value(&whole).is_ok());
    for (path, value) in [
        ("/v", json!(2)),
        ("/kind", json!("artifact")),
        ("/spell", json!(1)),
        ("/patch", json!({"call": {}, "gates": {}})),
        ("/patch/call", json!({"temperature": 1})),
        ("/patch/gates/read", json!({"description": 1})),
        ("/patch/gates/read", json!({"labels": []})),
        ("/patch/wards", json!([])),
    ] {
        let mut altered = whole.clone();
        *altered.pointer_mut(path).expect("it is there") = value.clone();
        assert!(SpellVariant::from_value(&altered).is_err(), "{path} {value}");
    }
}
