//! A cantrip is built completely or not at all, and all its faults are reported at once.

use cantrip::fold::FoldOptions;
use cantrip::{Call, Cantrip, loom_id_for};
use cantrip::{CantripBuilder, CantripFault, CantripFaults};
use cantrip_circle::gate::builtin;
use cantrip_circle::{Circle, CircleFault, MediumKind, SystemPrompt};
use cantrip_crystal::{Price, ProfileRow, Rates, Response, Script, ScriptedCrystal, ToolChoice};
use cantrip_loom::ToolMode;
use cantrip_reply::{codes, testing};
use serde_json::json;

fn crystal() -> ScriptedCrystal {
    ScriptedCrystal::new("scripted/test", Script::new([Response::text("hello")]))
}

fn sound() -> CantripBuilder {
    Cantrip::builder().crystal(crystal()).gate(builtin::done()).ward("max_turns", 5)
}

/// Returns the reported fault, and all of them.
#[track_caller]
fn told(builder: CantripBuilder) -> (String, Vec<String>) {
    let faults: CantripFaults = builder.build().expect_err("it cannot be built");
    let all = faults.all().iter().map(CantripFault::to_string).collect();
    let guarded = testing::guarded(|rb| rb.refuse(faults.into()));
    testing::assert_code(&guarded.reply, codes::CONTRACT_INVALID);
    assert_eq!(guarded.reply.data()["faults"], json!(all));
    (guarded.reply.message(), all)
}

#[test]
fn the_first_fault_in_the_order_of_the_rules_is_told() {
    let circle = || Circle::builder().gate(builtin::done()).wards(&json!({"max_turns": 5}));
    for (builder, wanted) in [
        (Cantrip::builder(), "cantrip requires a crystal"),
        (Cantrip::builder().circle(circle()), "cantrip requires a crystal"),
        (Cantrip::builder().crystal(crystal()), "cantrip requires a circle"),
        (
            Cantrip::builder().crystal(crystal()).call(Call::new().require_done_tool()).circle(Circle::builder()),
            "cantrip with require_done must have a done gate",
        ),
        (
            Cantrip::builder().crystal(crystal()).ward("require_done_tool", true).ward("max_turns", 3),
            "cantrip with require_done must have a done gate",
        ),
        (Cantrip::builder().crystal(crystal()).circle(Circle::builder()), "circle must have a done gate"),
        (Cantrip::builder().crystal(crystal()).gate(builtin::done()), "cantrip must have at least one truncation ward"),
        (
            Cantrip::builder().crystal(crystal()).gate(builtin::done()).ward("max_tokens", 10),
            "cantrip must have at least one truncation ward",
        ),
        (
            sound().medium(MediumKind::Javascript).medium(MediumKind::Conversation),
            "circle must declare exactly one medium",
        ),
        (sound().gate(builtin::echo()).gate(builtin::echo()), "gate echo is declared twice"),
        (sound().ward("max_turn", 3), "unknown ward max_turn; did you mean max_turns?"),
        (sound().folding(FoldOptions::after_turns(1)), "folding after 1 turns keeps nothing: at least 2"),
        (sound().call(Call::new().temperature(f64::NAN)), "the call cannot be recorded"),
    ] {
        let (message, _) = told(builder);
        assert!(message.contains(wanted), "{message} is not {wanted}");
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let (message, all) = told(
        Cantrip::builder()
            .call(Call::new().require_done_tool())
            .gate(builtin::echo())
            .gate(builtin::echo())
            .medium(MediumKind::Conversation)
            .medium(MediumKind::Javascript)
            .ward("max_trns", 5),
    );
    assert_eq!(message, "cantrip requires a crystal");
    assert_eq!(
        all,
        [
            "cantrip requires a crystal",
            "cantrip with require_done must have a done gate",
            "circle must have a done gate",
            "cantrip must have at least one truncation ward",
            "circle must declare exactly one medium",
            "gate echo is declared twice",
            "unknown ward max_trns; did you mean max_turns?",
        ]
    );
}

#[test]
fn a_limit_on_money_needs_a_price_in_its_currency() {
    let listed = |currency: &str| {
        let money = |amount: &str| format!("{amount} {currency}").parse().unwrap();
        Price::Listed(Rates::new(money("1"), money("2")).unwrap())
    };
    let hosted = || ScriptedCrystal::new("anthropic/claude", Script::new([]));
    let limited =
        |builder: CantripBuilder| builder.gate(builtin::done()).wards(&json!({"max_turns": 5, "max_cost": "1 USD"}));
    let faults = limited(Cantrip::builder().crystal(hosted())).build().expect_err("nobody knows its price");
    assert!(matches!(faults.first(), CantripFault::Unpriced { .. }), "{faults}");
    let in_euro = Cantrip::builder().crystal(hosted()).price(listed("EUR"));
    assert!(limited(in_euro).build().is_err());
    let in_dollars = Cantrip::builder().crystal(hosted()).price(listed("USD"));
    assert!(limited(in_dollars).build().is_ok());
    assert!(limited(Cantrip::builder().crystal(crystal())).build().is_ok(), "a script costs nothing");
}

#[test]
fn wards_of_one_kind_resolve_at_once_and_a_child_is_never_wider() {
    let parent = sound().ward("max_turns", 50).ward("max_turns", 10).ward("max_turns", 100).ward("memory", "1MiB");
    let parent = parent.ward("require_done_tool", false).build().expect("sound");
    assert_eq!(parent.wards().max_turns, Some(5), "the 5 that every sound one has is the least");
    assert!(!parent.wards().require_done_tool);
    let either = sound().ward("require_done_tool", true).ward("require_done_tool", false).build().expect("sound");
    assert!(either.wards().require_done_tool);
    let called = sound().call(Call::new().require_done_tool()).build().expect("sound");
    assert!(called.wards().require_done_tool);

    let asked = cantrip_circle::Wards::parse(&json!({"max_turns": 20, "memory": "64MiB"})).expect("wards");
    let child = parent.wards().for_child(&asked);
    assert_eq!((child.max_turns, child.medium.memory_bytes), (Some(5), Some(1 << 20)));
}

#[test]
fn equal_cantrips_have_one_id_and_any_difference_makes_another() {
    let plain = sound().build().expect("sound");
    assert_eq!(plain.id(), sound().build().expect("sound").id());
    assert_eq!(plain.id(), plain.clone().id());
    let others = [
        sound().call(Call::new().system_prompt("You count.")),
        sound().call(Call::new().temperature(0.5)),
        sound().gate(builtin::echo()),
        sound().ward("max_turns", 4),
        sound().medium(MediumKind::Javascript),
        Cantrip::builder()
            .crystal(ScriptedCrystal::new("scripted/other", Script::new([])))
            .gate(builtin::done())
            .ward("max_turns", 5),
    ];
    for other in others {
        assert_ne!(plain.id(), other.build().expect("sound").id());
    }
    // The name selects the loom; it is not part of the cantrip's identity.
    assert_eq!(plain.id(), sound().name("analyst").build().expect("sound").id());
    let mut bodies = Vec::new();
    let root = plain.root(&mut bodies).expect("it is short");
    assert_eq!((root.cantrip_id, root.hash), (plain.id(), plain.record().hash().expect("it has one")));
}

#[test]
fn a_loom_is_that_of_the_name_or_else_of_the_cantrip() {
    let named = |prompt: &str| sound().name("analyst").call(Call::new().system_prompt(prompt)).build().expect("sound");
    assert_eq!(named("one").loom_id(), named("two").loom_id());
    assert_eq!(named("one").loom_id(), loom_id_for("analyst"));
    let (one, two) = (sound(), sound().call(Call::new().system_prompt("other")));
    assert_ne!(one.build().expect("sound").loom_id(), two.build().expect("sound").loom_id());
}

#[test]
fn an_empty_prompt_is_none_and_a_missing_call_is_the_empty_one() {
    let empty = sound().call(Call::new().system_prompt("")).build().expect("sound");
    assert_eq!(empty.id(), sound().build().expect("sound").id());
    assert_eq!(empty.frame(None).system_prompt, None);
    assert_eq!(empty.call(), &Call::new());
}

#[test]
fn capabilities_are_text_only_where_no_tools_are_offered() {
    let tools = sound().build().expect("sound");
    assert_eq!(tools.frame(Some("You may read.".into())).capabilities, None);
    let fenced = sound().fenced(true).build().expect("sound");
    assert_eq!(fenced.mode(), ToolMode::Fenced);
    assert_eq!(fenced.frame(Some("You may read.".into())).capabilities.as_deref(), Some("You may read."));
}

#[test]
fn a_call_is_demanded_in_code_where_it_can_be_and_done_is_required() {
    let code = || sound().medium(MediumKind::Javascript);
    let done = || Call::new().require_done_tool();
    let forcing = || ProfileRow { forces_calls: Some(true), ..ProfileRow::default() };
    for (builder, wanted) in [
        (sound(), ToolChoice::Auto),
        (sound().call(done()).profile(forcing()), ToolChoice::Auto),
        (code().call(done()), ToolChoice::Auto),
        (code().profile(forcing()), ToolChoice::Auto),
        (code().call(done()).profile(forcing()), ToolChoice::Required),
        (code().call(done()).profile(forcing()).fenced(true), ToolChoice::Auto),
        (code().call(done().tool_choice(ToolChoice::None)).profile(forcing()), ToolChoice::None),
        (sound().call(Call::new().tool_choice(ToolChoice::Required)), ToolChoice::Required),
    ] {
        assert_eq!(builder.build().expect("sound").definition().choice_at(0), wanted);
    }
}

#[test]
fn a_child_has_its_own_prompt_crystal_and_circle_in_the_same_loom() {
    let parent = sound()
        .call(Call::new().system_prompt("You lead.").temperature(0.5))
        .child_crystal("small", ScriptedCrystal::new("scripted/small", Script::new([])))
        .build()
        .expect("sound");
    let circle = || parent.circle().clone();
    let inherited = parent.child(circle(), &SystemPrompt::Inherited, None).expect("sound");
    assert_eq!((inherited.call().prompt(), inherited.id()), (Some("You lead."), parent.id()));
    let own = parent.child(circle(), &SystemPrompt::Given("You follow.".into()), Some("small")).expect("sound");
    assert_eq!(own.call().prompt(), Some("You follow."));
    assert_eq!(own.call().sampling_settings().temperature, Some(0.5));
    assert_eq!(own.record().crystal, "scripted/small");
    assert_eq!(parent.child(circle(), &SystemPrompt::None, None).expect("sound").call().prompt(), None);
    assert_eq!(own.loom_id(), parent.loom_id());
    assert_ne!(own.id(), parent.id());
}

#[test]
fn a_cantrip_can_be_shared_between_threads() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    shared(&sound().build().expect("sound"));
}

#[test]
fn the_circles_own_faults_are_told_as_they_are() {
    let faults = sound().ward("max_turns", -1).build().expect_err("negative");
    assert!(matches!(faults.first(), CantripFault::Circle(CircleFault::Ward(_))), "{faults}");
    let (message, _) = told(sound().answer_schema(json!({"type": "nonsense"})));
    assert!(message.contains("answer_schema"), "{message}");
}
