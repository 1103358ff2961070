//! The space of a search: how candidates are built, and how it is restored from the options of a job.

use std::sync::Arc;

use cantrip_contract::{CandidateId, Demo, Params, SpellVariant, VariantPatch};
use cantrip_improve::compile::{BuiltCandidate, Rejection, SearchBase, Slot, Space, optimiser_spec};
use serde_json::{Map, Value, json};

use crate::landscape::triage;

fn space() -> Space {
    let signature = Arc::new(triage());
    let base = signature.base_artifact();
    Space::of_artifact(signature, base)
}

fn demo(number: u64) -> Demo {
    Demo { input: json!({"text": format!("ticket {number}")}), output: json!({"label": "billing"}), rationale: None }
}

#[test]
fn the_base_is_built_as_it_is_and_every_slot_changes_one_part() {
    let space = space();
    let base = triage().base_artifact();
    assert_eq!(space.build(space.base()).unwrap(), BuiltCandidate::Artifact(Box::new(base.clone())));
    assert_eq!(space.base_id(), CandidateId::from(base.id()));
    assert_eq!(space.slots(), [Slot::Instructions, Slot::Hints, Slot::Demos, Slot::Decoding]);

    let text = space.with_text(space.base(), &Slot::Instructions, "  Choose well.\n").unwrap();
    let built = space.build(&text).unwrap();
    assert_eq!(built.artifact().unwrap(), &base.with_instructions("Choose well."));
    let hinted = space.with_text(&text, &Slot::Hints, "- /label: in lower case\n/other: no").unwrap();
    let wanted = base.with_instructions("Choose well.\n\nNotes:\n- /label: in lower case\n");
    assert_eq!(space.build(&hinted).unwrap().artifact().unwrap(), &wanted);
    assert_eq!(hinted.text(&Slot::Hints), "- /label: in lower case\n");

    let first = space.base().with_demos(vec![demo(1), demo(2)]);
    let second = space.base().with_demos(vec![demo(2), demo(1)]);
    assert_ne!(space.build(&first).unwrap().id(), space.build(&second).unwrap().id(), "order is part of a candidate");
    assert_eq!(space.build(&first).unwrap().artifact().unwrap(), &base.with_demos(vec![demo(1), demo(2)]));

    let taught = space.build(&space.base().with_model("scripted/teacher")).unwrap();
    assert_eq!(taught.artifact().unwrap().params().model.as_deref(), Some("scripted/teacher"));
    // A merge takes the value of one slot from another candidate.
    let merged = hinted.with_value_of(&Slot::Demos, &first);
    assert_eq!((merged.demos(), merged.text(&Slot::Instructions)), (first.demos(), "Choose well.".to_owned()));
    assert_ne!(merged.value(&Slot::Demos), hinted.value(&Slot::Demos));
}

#[test]
fn notes_of_an_earlier_compile_are_hints_of_the_next() {
    let signature = Arc::new(triage());
    let base = signature.base_artifact().with_instructions("Choose.\n\nNotes:\n- /label: short\n");
    let space = Space::of_artifact(signature, base.clone());
    assert_eq!(space.base().text(&Slot::Instructions), "Choose.");
    assert_eq!(space.build(space.base()).unwrap().id(), CandidateId::from(base.id()));
    let other = space.with_text(space.base(), &Slot::Hints, "/label: long").unwrap();
    let built = space.build(&other).unwrap();
    assert_eq!(built.artifact().unwrap().instructions(), "Choose.\n\nNotes:\n- /label: long\n");
}

#[test]
fn a_text_that_breaks_a_rule_of_its_slot_is_rejected() {
    let space = space();
    let rejected = |slot: &Slot, text: &str| space.with_text(space.base(), slot, text).unwrap_err();
    assert_eq!(rejected(&Slot::Instructions, " \n "), Rejection::Empty);
    assert_eq!(rejected(&Slot::Instructions, &"x".repeat((16 << 10) + 1)), Rejection::TooLong);
    assert_eq!(rejected(&Slot::Hints, "nothing about a field"), Rejection::Empty);
    assert_eq!(rejected(&Slot::Demos, "a text"), Rejection::Unfit);
    // A demo that does not match the schema, or too many of them, make no candidate.
    let mut wrong = demo(1);
    wrong.output = json!({"label": "kitchen"});
    assert_eq!(space.build(&space.base().with_demos(vec![wrong])), Err(Rejection::Unfit));
    let many: Vec<Demo> = (0..17).map(demo).collect();
    assert_eq!(space.build(&space.base().with_demos(many)), Err(Rejection::Unfit));

    let signature = Arc::new(triage());
    let base = signature.base_artifact().with_instructions("Greet {{ name }} and choose.");
    let space = Space::of_artifact(signature, base);
    assert_eq!(space.keeps(&Slot::Instructions), ["{{ name }}"]);
    let lacking = space.with_text(space.base(), &Slot::Instructions, "Greet and choose.");
    assert_eq!(lacking.unwrap_err(), Rejection::Lacks);
}

#[test]
fn a_space_is_restored_from_the_options_of_its_job() {
    let signature = Arc::new(triage());
    let base = SearchBase::Artifact { artifact: Box::new(signature.base_artifact()), signature };
    let given = json!({
        "slots": ["demos", "instructions", "decoding"], "decoding": [{"temperature": 0.5}, {}, {"temperature": 0.5}],
        "texts": ["Choose well."],
    });
    let spec = optimiser_spec("mipro_lite.v1", &given, base.clone(), false).unwrap();
    assert_eq!(spec.options["slots"], json!(["instructions", "demos", "decoding"]));
    assert_eq!(spec.options["decoding"], json!([{}, {"temperature": 0.5}]));
    let space = base.space().restored(&spec.options).unwrap();
    assert_eq!(space.slots(), [Slot::Instructions, Slot::Demos, Slot::Decoding]);
    assert_eq!(space.choice_count(), 2);
    let warm = space.build(&space.with_choice(space.base(), 1)).unwrap();
    assert_eq!(warm.artifact().unwrap().params(), &Params { temperature: Some(0.5), ..Params::default() });
    let narrow = space.narrowed(&[Slot::Instructions]).unwrap();
    assert_eq!(narrow.choice_count(), 1, "a slot that is not searched has the base's value");
    assert!(narrow.restored(&json!({})).is_err());
}

fn spell() -> Space {
    let gates = [("fetch".to_owned(), "Reads a page.".to_owned())];
    Space::of_spell("analyst", cantrip_id(), "Explore.", &gates)
}

fn cantrip_id() -> CandidateId {
    format!("can_{}", "a".repeat(32)).parse().unwrap()
}

#[test]
fn a_spell_has_variants_that_name_what_they_change_alone() {
    let wards: Map<String, Value> = json!({"max_turns": 4}).as_object().unwrap().clone();
    let space = spell().with_wards(std::slice::from_ref(&wards)).unwrap();
    assert_eq!(space.slots(), [Slot::Call, Slot::Gate("fetch".to_owned()), Slot::Wards]);
    assert_eq!(space.build(space.base()).unwrap(), BuiltCandidate::Spell(cantrip_id()));
    assert_eq!(space.base_id(), cantrip_id());

    let changed = space.with_text(space.base(), &Slot::Call, "Explore with care.").unwrap();
    let variant =
        |patch: VariantPatch| SpellVariant { spell: "analyst".to_owned(), base: cantrip_id().to_string(), patch };
    let call = variant(VariantPatch { call: Some("Explore with care.".to_owned()), ..VariantPatch::default() });
    assert_eq!(space.build(&changed).unwrap().variant(), Some(&call));
    let gate = Slot::Gate("fetch".to_owned());
    let described = space.with_text(space.base(), &gate, "Reads one page.").unwrap();
    let built = space.build(&space.with_choice(&described, 1)).unwrap();
    let patch = built.variant().unwrap().patch.clone();
    assert_eq!((patch.call, patch.wards), (None, wards));
    assert_eq!(patch.gates.get("fetch").map(String::as_str), Some("Reads one page."));
    // The text that the spell has already is no change.
    let same = space.with_text(&changed, &Slot::Call, "Explore.").unwrap();
    assert_eq!(space.build(&same).unwrap(), BuiltCandidate::Spell(cantrip_id()));
}

#[test]
fn slots_belong_to_signatures_or_to_spells() {
    assert!(spell().with_decodings(&[Params::default()]).is_err());
    assert!(space().with_wards(&[]).is_err());
    assert!(spell().narrowed(&[Slot::Demos]).is_err());
    for name in ["instructions", "sub_instructions", "hints", "demos", "decoding", "call", "gate:fetch", "wards"] {
        assert_eq!(name.parse::<Slot>().unwrap().to_string(), name);
    }
    assert!("gate:".parse::<Slot>().is_err() && "mood".parse::<Slot>().is_err());
    // A spell has no demos, and texts are its instructions.
    let base = SearchBase::Spell {
        name: "analyst".to_owned(),
        id: cantrip_id(),
        call: "Explore.".to_owned(),
        gates: Vec::new(),
    };
    assert!(optimiser_spec("bootstrap_demos.v1", &json!({}), base.clone(), false).is_err());
    let spec = optimiser_spec("instruction_grid.v1", &json!({"texts": ["Explore twice."]}), base, false).unwrap();
    assert_eq!(spec.options["cross"], json!(0));
}
