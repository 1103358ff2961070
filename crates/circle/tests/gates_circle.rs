//! The decisions of a circle about calls, and the parts of a circle.

use crate::gates;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cantrip_canon::Money;
use cantrip_circle::gate::builtin::{
    self, AskError, Human, OwnThread, Question, ThreadQuery, ThreadReadError, TurnName, call_agent, call_agent_batch,
};
use cantrip_circle::gate::{
    Gate, GateSpec, Identity, NoArguments, StopReason, StopSignal, Stopper, gate, gate_with_call,
};
use cantrip_circle::medium::{CallTarget, Conversation, Medium};
use cantrip_circle::{
    ApprovalReason, CallArguments, CallRequest, CallerState, Circle, CircleFault, Decision, DelegationGrants, Effect,
    Label, Labels, MediumKind, SystemPrompt,
};
use cantrip_loom::{GateCall, ToolMode};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use gates::{call, circle, decide, execute, refused, value};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

fn texts(faults: &[CircleFault]) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}

fn nowhere() -> CallerState {
    CallerState::default()
}

#[test]
fn everything_wrong_with_a_circle_is_told_at_once_and_in_one_order() {
    let broken = builtin::echo().parameters(json!({"type": "object", "properties": {"a": {"type": "nonsense"}}}));
    let remote = gate("remote", "x", |_: NoArguments| async { Ok::<_, Refusal>(1) });
    let remote = cantrip_circle::AnyGate::from(remote)
        .parameters(json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}));
    let faults = Circle::builder()
        .wards(&json!({"max_turn": 3, "max_depth": -1}))
        .wards(&json!({"require_done_tool": true}))
        .gate(broken)
        .gate(remote)
        .gate(builtin::read(None))
        .gate(builtin::read(None))
        .medium(MediumKind::Javascript)
        .medium(MediumKind::Conversation)
        .build()
        .expect_err("nothing about it is right");
    let told = texts(&faults);
    assert_eq!(told[0], "cantrip with require_done must have a done gate");
    assert_eq!(told[1], "circle must have a done gate");
    assert_eq!(told[2], "cantrip must have at least one truncation ward");
    assert_eq!(told[3], "circle must declare exactly one medium");
    assert!(matches!(&faults[4], CircleFault::DuplicateGate(name) if name == "read"));
    assert!(matches!(&faults[5], CircleFault::Schema { gate, .. } if gate == "echo"));
    assert!(matches!(&faults[6], CircleFault::Schema { gate, .. } if gate == "remote"));
    assert_eq!(told[7], "unknown ward max_turn; did you mean max_turns?");
    assert_eq!(told[8], "ward max_depth is negative");
    assert_eq!(faults.len(), 9);
}

#[test]
fn a_circle_whose_done_is_warded_off_does_not_build_and_tokens_do_not_end_a_cast() {
    let removed = Circle::builder().gate(builtin::done()).wards(&json!({"max_turns": 1, "remove_gate": "done"}));
    assert_eq!(removed.build().expect_err("done is needed"), [CircleFault::NoDone]);
    let endless = Circle::builder().gate(builtin::done()).wards(&json!({"max_tokens": 1, "max_cost": "1 USD"}));
    assert_eq!(endless.build().expect_err("it could run for ever"), [CircleFault::NoTruncation]);
    let timed = Circle::builder().gate(builtin::done()).wards(&json!({"timeout": "5m"}));
    assert_eq!(timed.build().expect("it ends").wards().timeout, Some(Duration::from_secs(300)));
    let named = Circle::builder()
        .gate(builtin::done())
        .gate(gate("no name", "x", |_: NoArguments| async { Ok::<_, Refusal>(1) }))
        .wards(&json!({"max_turns": 1}));
    assert_eq!(named.build().expect_err("no tool can be called so"), [CircleFault::GateName("no name".into())]);
}

#[test]
fn a_ward_that_cannot_be_read_does_not_hide_the_ones_beside_it() {
    for written in [json!({"max_turns": 3, "max_naps": 2}), json!([{"max_turns": 3}, {"max_naps": 2}])] {
        let faults = Circle::builder().gate(builtin::done()).wards(&written).build().expect_err("no such ward");
        assert!(matches!(faults.as_slice(), [CircleFault::Ward(fault)] if fault.ward == "max_naps"), "{faults:?}");
    }
}

#[test]
fn an_unknown_gate_is_invalid_with_its_nearest_names_and_a_removed_one_is_denied() {
    let circle = circle([builtin::echo(), builtin::read(None)], json!({"remove_gate": ["echo"]}));
    let unknown = refused(&circle, "raed", json!({}), &nowhere());
    assert_code(&unknown, codes::GATE_UNKNOWN);
    assert_eq!(unknown.data()["nearest"], json!(["read"]));
    let removed = refused(&circle, "echo", json!("not even an object"), &nowhere());
    assert_code(&removed, codes::GATE_REMOVED);
    assert_eq!(removed.data()["ward"], "remove_gate");
    let names: Vec<_> = circle.definitions().into_iter().map(|definition| definition.name).collect();
    assert_eq!(names, ["done", "read"], "what is removed is not shown");
    assert_eq!(circle.removed().collect::<Vec<_>>(), [("echo", "remove_gate")]);
}

#[test]
fn arguments_that_do_not_fit_are_invalid_with_the_place_of_the_fault() {
    let circle = circle([builtin::read(None), builtin::list(None)], json!({}));
    let missing = refused(&circle, "read", json!({}), &nowhere());
    assert_code(&missing, codes::SCHEMA);
    assert_eq!(missing.data()["path"], "/path");
    assert_eq!(missing.data()["rule"], "missing required argument");
    for (arguments, path) in [
        (json!({"path": 5}), "/path"),
        (json!({"path": "a", "offset": 0}), "/offset"),
        (json!({"path": "a", "extra": 1}), ""),
        (json!([1]), ""),
        (json!(7), ""),
    ] {
        let reply = refused(&circle, "read", arguments.clone(), &nowhere());
        assert_code(&reply, codes::SCHEMA);
        assert_eq!(reply.data()["path"], path, "{arguments}");
    }
    let secret = refused(&circle, "read", json!({"path": {"key": "very-secret-value"}}), &nowhere());
    assert!(!secret.message().is_empty() && !format!("{:?}", secret.data()).contains("very-secret-value"));
}

#[test]
fn arguments_that_came_as_text_are_read_and_what_is_no_json_is_refused() {
    let circle = circle([builtin::echo(), builtin::list(None)], json!({}));
    assert!(matches!(decide(&circle, "echo", json!("{\"text\": 1}")), Decision::Allowed(_)));
    for nothing in [json!(null), json!(""), json!(" ")] {
        assert!(matches!(decide(&circle, "list", nothing), Decision::Allowed(_)));
    }
    for text in ["{\"text\": ", "{\"text\": 1, \"text\": 2}", "{'text': 1}"] {
        assert_code(&refused(&circle, "echo", json!(text), &nowhere()), codes::UNPARSABLE);
    }
}

#[test]
fn the_first_check_that_fails_answers() {
    let circle = circle(
        [builtin::read(None)],
        json!({"restrict": {"paths": ["data"]}, "max_gate_calls": 2, "require_approval": "read"}),
    );
    let spent = CallerState { calls: 2, can_ask_person: true, touched: Labels::none(), children: 0 };
    assert_code(&refused(&circle, "none", json!(1), &spent), codes::GATE_UNKNOWN);
    assert_code(&refused(&circle, "read", json!("{"), &spent), codes::UNPARSABLE);
    assert_code(&refused(&circle, "read", json!({}), &spent), codes::SCHEMA);
    assert_code(&refused(&circle, "read", json!({"path": "other"}), &spent), codes::READ_REFUSED);
    let calls = refused(&circle, "read", json!({"path": "data/a"}), &spent);
    assert_code(&calls, codes::CALLS_SPENT);
    assert_eq!(calls.data()["limit"], 2);
    let allowed = CallerState { calls: 1, ..spent };
    let decided = circle
        .decide(CallRequest { gate: "read", arguments: CallArguments::Tool(json!({"path": "data/a"})) }, &allowed);
    let Decision::NeedsApproval { reasons, then: Effect::Execute(permit) } = decided else {
        panic!("a person has to be asked: {decided:?}")
    };
    assert_eq!(reasons, [ApprovalReason::Required]);
    assert_eq!(permit.arguments()["path"], "data/a");
}

#[test]
fn done_ends_with_any_value_and_a_malformed_one_ends_nothing() {
    let circle = circle([], json!({}));
    for answer in [json!(null), json!("x"), json!({"a": [1]}), json!(0)] {
        let decided = decide(&circle, "done", json!({"answer": answer.clone()}));
        let Decision::Allowed(Effect::Done { answer: given }) = decided else {
            panic!("it ends the cast: {decided:?}")
        };
        assert_eq!(given, answer);
    }
    for arguments in [json!({}), json!({"answer": 1, "second": 2}), json!({"result": 1})] {
        assert_code(&refused(&circle, "done", arguments, &nowhere()), codes::DONE_MALFORMED);
    }
    let too_many = cantrip_circle::arguments::Fault {
        path: String::new(),
        rule: cantrip_circle::arguments::Rule::TooMany { given: 2, declared: 1 },
    };
    let asked = CallRequest { gate: "done", arguments: CallArguments::Code(Err(too_many)) };
    assert!(
        matches!(circle.decide(asked, &nowhere()), Decision::Refused(refusal) if refusal.code() == codes::DONE_MALFORMED)
    );
}

#[test]
fn an_answer_schema_is_shown_with_done_and_holds() {
    let schema = json!({"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]});
    let builder = || Circle::builder().gate(builtin::done()).wards(&json!({"max_turns": 1}));
    let circle = builder().answer_schema(schema.clone()).build().expect("it builds");
    assert_eq!(circle.definitions()[0].parameters["properties"]["answer"], schema);
    assert!(circle.wards().require_done_tool, "a typed answer comes through done");
    let against = refused(&circle, "done", json!({"answer": {"total": "x"}}), &nowhere());
    assert_code(&against, codes::DONE_MALFORMED);
    assert_eq!(against.data()["violations"][0]["path"], "/total");
    assert!(matches!(decide(&circle, "done", json!({"answer": {"total": 1}})), Decision::Allowed(Effect::Done { .. })));
    let parts = json!({"$ref": "#/$defs/T", "$defs": {"T": {"type": "integer"}}});
    let shown = builder().answer_schema(parts).build().expect("it builds").definitions().remove(0).parameters;
    assert_eq!(shown["properties"]["answer"], json!({"$ref": "#/$defs/T"}));
    assert_eq!(shown["$defs"], json!({"T": {"type": "integer"}}), "the reference leads somewhere");
    let unusable = builder().answer_schema(json!({"type": 5})).build().expect_err("it cannot be compiled");
    assert!(matches!(unusable[0], CircleFault::AnswerSchema(_)));
}

#[test]
fn in_code_gates_are_functions_and_submit_answer_is_done() {
    let circle = Circle::builder()
        .gate(builtin::done())
        .gate(builtin::read(None))
        .medium(MediumKind::Javascript)
        .wards(&json!({"max_turns": 1, "remove_gate": "fetch"}))
        .build()
        .expect("it builds");
    assert_code(&refused(&circle, "read", json!({"path": "a"}), &nowhere()), codes::TARGET_UNUSABLE);
    let arguments = Map::from_iter([("answer".to_owned(), json!(1))]);
    let asked = CallRequest { gate: "submit_answer", arguments: CallArguments::Code(Ok(arguments)) };
    assert!(
        matches!(circle.decide(asked, &nowhere()), Decision::Allowed(Effect::Done { answer }) if answer == json!(1))
    );
    let declared: Vec<_> =
        circle.properties("read").expect("it is there").into_iter().map(|p| (p.name, p.object)).collect();
    let wanted = [("path", false), ("offset", false), ("limit", false)].map(|(name, object)| (name.to_owned(), object));
    assert_eq!(declared, wanted);
    assert!(circle.properties("done").expect("it is there")[0].object, "an answer may be an object");
}

fn trifecta(wards: Value) -> Circle {
    let both = builtin::echo().with_labels([Label::UntrustedContent, Label::ExternalComm]);
    circle([builtin::read(None), both], wards)
}

#[test]
fn three_labels_switch_the_ward_on_and_the_call_that_joins_them_needs_a_person() {
    let circle = trifecta(json!({}));
    assert!(circle.wards().trifecta);
    let touched = Labels::of([Label::PrivateData]);
    let nobody = CallerState { touched: touched.clone(), ..CallerState::default() };
    let denied = refused(&circle, "echo", json!({"text": 1}), &nobody);
    assert_code(&denied, codes::TRIFECTA);
    assert_eq!(denied.data()["toml"], "gates.echo.labels = [\"untrusted_content\", \"external_comm\"]");
    assert_eq!(denied.data()["touched"], json!(["private_data"]));
    let someone = CallerState { can_ask_person: true, ..nobody.clone() };
    let decided =
        circle.decide(CallRequest { gate: "echo", arguments: CallArguments::Tool(json!({"text": 1})) }, &someone);
    let Decision::NeedsApproval { reasons, then } = decided else { panic!("a person has to be asked: {decided:?}") };
    assert!(matches!(&reasons[..], [ApprovalReason::Trifecta { touched: told, .. }] if *told == touched));
    assert_eq!(then.labels(), Labels::of([Label::UntrustedContent, Label::ExternalComm]));
    let all = CallerState { touched: Labels::all(), ..nobody };
    let done = circle.decide(CallRequest { gate: "done", arguments: CallArguments::Tool(json!({"answer": 1})) }, &all);
    assert!(matches!(done, Decision::Allowed(Effect::Done { .. })), "done stays callable");
    let first =
        circle.decide(CallRequest { gate: "read", arguments: CallArguments::Tool(json!({"path": "a"})) }, &nowhere());
    assert!(matches!(first, Decision::Allowed(_)), "one alone joins nothing");
}

#[test]
fn a_reason_lifts_the_trifecta_and_a_child_cannot() {
    let lifted = trifecta(json!({"allow_trifecta": "the data is public"}));
    assert!(!lifted.wards().trifecta);
    let parent = Circle::builder()
        .gate(builtin::done())
        .gate(call_agent())
        .gate(builtin::read(None))
        .gate(builtin::echo().with_labels([Label::UntrustedContent, Label::ExternalComm]))
        .wards(&json!({"max_turns": 5}))
        .build()
        .expect("it builds");
    let child = one_child(&parent, json!({"intent": "x", "wards": {"allow_trifecta": "because I say so"}}));
    assert!(child.circle.wards().trifecta && child.circle.wards().allow_trifecta.is_none());
    let alone = circle([builtin::read(None)], json!({}));
    assert!(!alone.wards().trifecta);
    let browser = Circle::builder().gate(builtin::done()).gate(builtin::read(None)).medium(MediumKind::Browser);
    let browser = browser.wards(&json!({"max_turns": 1})).build().expect("it builds");
    assert!(browser.wards().trifecta, "a medium brings in dangers too");
}

#[test]
fn labels_from_outside_are_raised_and_never_lowered() {
    let gate = builtin::read(None).with_added_labels([Label::ExternalComm]);
    assert_eq!(gate.spec().labels, Labels::of([Label::PrivateData, Label::ExternalComm]));
    assert_eq!(gate.with_added_labels([]).spec().labels, Labels::of([Label::PrivateData, Label::ExternalComm]));
}

fn delegating(wards: Value) -> Circle {
    let delegates = DelegationGrants {
        crystals: ["scripted/small".to_owned()].into(),
        crystal_by_level: vec!["scripted/one".into(), "scripted/two".into()],
        mediums: [MediumKind::Python].into(),
        ..DelegationGrants::default()
    };
    Circle::builder()
        .gate(builtin::done())
        .delegation_gate(call_agent(), delegates.clone())
        .delegation_gate(call_agent_batch(), delegates)
        .gate(builtin::echo())
        .gate(builtin::read(None))
        .crystal("scripted/own")
        .medium(MediumKind::Conversation)
        .wards(&json!({"max_turns": 5, "max_depth": 2, "remove_gate": "read"}))
        .wards(&wards)
        .build()
        .expect("it builds")
}

fn children(circle: &Circle, gate: &str, arguments: Value) -> Vec<cantrip_circle::Child> {
    let decided = decide(circle, gate, arguments);
    let Decision::Allowed(Effect::Delegate(delegation)) = decided else { panic!("it delegates: {decided:?}") };
    delegation.children
}

fn one_child(circle: &Circle, request: Value) -> cantrip_circle::Child {
    children(circle, "call_agent", request).pop().expect("one child")
}

fn names(circle: &Circle) -> Vec<&str> {
    circle.gates().map(cantrip_circle::AnyGate::name).collect()
}

#[test]
fn a_child_gets_what_its_parent_has_and_no_more() {
    let parent = delegating(json!({}));
    let child = one_child(&parent, json!({"intent": "sum"}));
    assert_eq!(child.intent.text(), "sum");
    assert_eq!(child.system_prompt, SystemPrompt::Inherited);
    assert_eq!(names(&child.circle), ["done", "call_agent", "call_agent_batch", "echo"]);
    assert_eq!(child.circle.wards().max_turns, Some(5));
    assert_eq!((child.circle.wards().depth(), child.circle.level()), (1, 1));
    assert_eq!(child.crystal.as_deref(), Some("scripted/one"));
    let grandchild = one_child(&child.circle, json!({"intent": "sum", "system_prompt": null}));
    assert_eq!(grandchild.crystal.as_deref(), Some("scripted/two"));
    assert_eq!(grandchild.system_prompt, SystemPrompt::None);
    assert_eq!(names(&grandchild.circle), ["done", "echo"], "at depth 0 there is no delegation");
    for gate in ["call_agent", "call_entity", "call_agent_batch"] {
        let denied = refused(&grandchild.circle, gate, json!({"intent": "x"}), &nowhere());
        assert_code(&denied, codes::GATE_REMOVED);
        assert_eq!(denied.data()["ward"], "max_depth");
    }
    let still = refused(&grandchild.circle, "read", json!({}), &nowhere());
    assert_code(&still, codes::GATE_REMOVED);
}

#[test]
fn a_child_is_narrowed_by_what_was_asked_and_never_widened() {
    let parent = delegating(json!({"timeout": "10s"}));
    let request = json!({
        "intent": "x", "gates": ["echo"], "max_turns": 20, "max_depth": 9,
        "wards": [{"timeout": "1h"}, {"require_done_tool": true}], "crystal": "scripted/small", "medium": "python",
        "system_prompt": "Be brief.",
    });
    let child = one_child(&parent, request);
    assert_eq!(names(&child.circle), ["done", "echo"]);
    let wards = child.circle.wards();
    assert_eq!((wards.max_turns, wards.depth(), wards.timeout), (Some(5), 1, Some(Duration::from_secs(10))));
    assert!(wards.require_done_tool);
    assert_eq!((child.crystal.as_deref(), child.circle.medium()), (Some("scripted/small"), MediumKind::Python));
    assert_eq!(child.system_prompt, SystemPrompt::Given("Be brief.".into()));
    assert_eq!(one_child(&parent, json!({"intent": "x", "max_turns": 2})).circle.wards().max_turns, Some(2));
}

#[test]
fn a_child_that_asks_for_what_it_may_not_have_is_refused_whole() {
    let parent = delegating(json!({}));
    for gate in ["fetch", "read", "context"] {
        let grant = refused(&parent, "call_agent", json!({"intent": "x", "gates": [gate]}), &nowhere());
        assert_code(&grant, codes::CANNOT_GRANT);
        assert_eq!(grant.data()["gate"], gate);
    }
    let crystal = refused(&parent, "call_agent", json!({"intent": "x", "crystal": "other/model"}), &nowhere());
    assert_code(&crystal, codes::NOT_FOUND);
    for intent in ["", "  \n"] {
        assert_code(&refused(&parent, "call_agent", json!({"intent": intent}), &nowhere()), codes::CONTRACT_INVALID);
    }
    for (request, path) in [
        (json!({}), "/intent"),
        (json!({"intent": 5}), "/intent"),
        (json!({"intent": "x", "wards": {"max_turn": 1}}), "/wards/max_turn"),
        (json!({"intent": "x", "wards": {"max_depth": -1}}), "/wards/max_depth"),
        (json!({"intent": "x", "max_turns": -1}), "/max_turns"),
        (json!({"intent": "x", "max_depth": "two"}), "/max_depth"),
        (json!({"intent": "x", "medium": "javascript"}), "/medium"),
        (json!({"intent": "x", "medium": "telepathy"}), "/medium"),
        (json!({"intent": "x", "system_prompt": 5}), "/system_prompt"),
        (json!({"intent": "x", "colour": "red"}), ""),
    ] {
        let reply = refused(&parent, "call_agent", request.clone(), &nowhere());
        assert_code(&reply, codes::SCHEMA);
        assert_eq!(reply.data()["path"], path, "{request}");
    }
    let large = json!({"intent": "x", "context": "x".repeat((16 << 20) + 1)});
    assert_code(&refused(&parent, "call_agent", large, &nowhere()), codes::LIMIT);
}

#[test]
fn a_batch_is_checked_whole_before_anything_is_spawned() {
    let parent = delegating(json!({}));
    let batch = children(&parent, "call_entity_batch", json!({"requests": ["a", {"intent": "b", "gates": ["echo"]}]}));
    assert_eq!(batch.iter().map(|child| child.intent.text()).collect::<Vec<_>>(), ["a", "b"]);
    let mixed = json!({"requests": ["a", {"intent": "b", "gates": ["fetch"]}]});
    let denied = refused(&parent, "call_agent_batch", mixed, &nowhere());
    assert_code(&denied, codes::CANNOT_GRANT);
    assert_eq!(denied.data()["index"], 1);
    for (requests, path) in [
        (json!(["a", {"gates": []}]), "/requests/1/intent"),
        (json!(["a", {"intent": "b", "max_turns": "x"}]), "/requests/1/max_turns"),
        (json!(["a", 5]), "/requests/1"),
        (json!(["a", {"intent": "b", "wards": {"nonsense": 1}}]), "/requests/1/wards/nonsense"),
    ] {
        let reply = refused(&parent, "call_agent_batch", json!({"requests": requests.clone()}), &nowhere());
        assert_code(&reply, codes::SCHEMA);
        assert_eq!(reply.data()["path"], path, "{requests}");
    }
    let blank = refused(&parent, "call_agent_batch", json!({"requests": ["a", " "]}), &nowhere());
    assert_code(&blank, codes::CONTRACT_INVALID);
    assert_eq!(blank.data()["index"], 1);
    let many = refused(&parent, "call_agent_batch", json!({"requests": vec!["a"; 51]}), &nowhere());
    assert_code(&many, codes::LIMIT);
    assert_eq!(children(&parent, "call_agent_batch", json!({"requests": vec!["a"; 50]})).len(), 50);
}

#[tokio::test]
async fn a_batch_of_nothing_is_an_empty_list_and_no_child() {
    let reply = call(&delegating(json!({})), "call_agent_batch", json!({"requests": []})).await;
    assert_code(&reply, codes::GATE_OK);
    assert_eq!(value(&reply), &json!([]));
}

#[tokio::test]
async fn context_is_read_piece_by_piece_and_belongs_to_one_entity() {
    let parent = delegating(json!({}));
    let long: Vec<u32> = (0..50_000).collect();
    let context = json!({"docs": long, "title": "Ünder", "big": {"a": "x".repeat(70_000)}, "n": 1});
    let child = one_child(&parent, json!({"intent": "x", "context": context}));
    let circle = &child.circle;
    let reading = |arguments: Value| async move { call(circle, "context", arguments).await };
    let top = reading(json!({})).await;
    assert_code(&top, codes::READ);
    assert_eq!(value(&top), &json!({"type": "object", "size": 4, "keys": ["docs", "title", "big", "n"]}));
    let docs = reading(json!({"pointer": "/docs", "offset": 100, "limit": 2})).await;
    assert_eq!(value(&docs), &json!({"type": "list", "size": 50_000, "value": [100, 101]}));
    let text = reading(json!({"pointer": "/title", "offset": 0, "limit": 2})).await;
    assert_eq!(value(&text), &json!({"type": "text", "size": 5, "value": "Ün"}));
    assert_eq!(value(&reading(json!({"pointer": "/n"})).await)["value"], 1);
    let bounded = reading(json!({"pointer": "/docs"})).await;
    assert!(value(&bounded)["value"].as_array().expect("a list").len() < 50_000);
    for arguments in [json!({"pointer": "/none"}), json!({"pointer": "/docs", "offset": 50_001})] {
        assert_code(&reading(arguments).await, codes::TARGET_UNUSABLE);
    }
    let grandchild = one_child(circle, json!({"intent": "y"}));
    assert!(grandchild.circle.gate("context").is_none(), "what a parent was given is not its child's");
    let granting = refused(circle, "call_agent", json!({"intent": "y", "gates": ["context"]}), &nowhere());
    assert_code(&granting, codes::CANNOT_GRANT);
}

#[derive(Deserialize, JsonSchema)]
struct Sum {
    /// The first number.
    b: i64,
    a: i64,
    note: Option<String>,
}

#[tokio::test]
async fn a_function_is_a_gate_with_the_schema_of_its_arguments() {
    let sum = gate("sum", "Adds.", |sum: Sum| async move {
        drop(sum.note);
        Ok::<_, Refusal>(sum.a + sum.b)
    });
    let circle = circle([sum.read_only().into()], json!({}));
    let definition = circle.definitions().pop().expect("it is shown");
    let properties: Vec<_> = definition.parameters["properties"].as_object().expect("an object").keys().collect();
    assert_eq!(properties, ["b", "a", "note"], "in declared order");
    assert_eq!(definition.parameters["required"], json!(["b", "a"]));
    assert!(definition.parameters.get("$schema").is_none());
    assert_eq!(value(&call(&circle, "sum", json!({"a": 1, "b": 2})).await), 3);
    assert_code(&call(&circle, "sum", json!({"a": 1})).await, codes::SCHEMA);
}

#[derive(Debug, thiserror::Error)]
#[error("the disk is on fire")]
struct Fire {
    source: std::io::Error,
}

#[tokio::test]
async fn a_refusal_is_the_reply_and_any_other_error_is_a_failure_of_the_gate() {
    let refuses =
        gate("refuses", "x", |_: NoArguments| async { Err::<(), Refusal>(codes::file_missing("a.txt").into()) });
    let fails =
        gate("fails", "x", |_: NoArguments| async { Err::<(), _>(Fire { source: std::io::Error::other("too hot") }) });
    let worded = gate("worded", "x", |_: NoArguments| async { Err::<(), &str>("in words") });
    let panics = gate("panics", "x", |_: NoArguments| async {
        assert!(std::hint::black_box(false), "a bug");
        Ok::<_, Refusal>(1)
    });
    let large =
        gate("large", "x", |_: NoArguments| async { Ok::<_, Refusal>("x".repeat(2_000)) }).result_bytes_max(1_000);
    let slow = gate("slow", "x", |_: NoArguments| std::future::pending::<Result<u8, Refusal>>());
    let slow = slow.time_max(Duration::from_millis(1));
    let circle =
        circle([refuses.into(), fails.into(), worded.into(), panics.into(), large.into(), slow.into()], json!({}));
    assert_code(&call(&circle, "refuses", json!({})).await, codes::FILE_MISSING);
    let failed = call(&circle, "fails", json!({})).await;
    assert_code(&failed, codes::GATE_FAILED);
    assert_eq!(failed.data()["detail"], "the disk is on fire: too hot");
    assert_code(&call(&circle, "worded", json!({})).await, codes::GATE_FAILED);
    assert_code(&call(&circle, "panics", json!({})).await, codes::CRASH);
    assert_code(&call(&circle, "large", json!({})).await, codes::TOO_LARGE);
    assert_code(&call(&circle, "slow", json!({})).await, codes::TIMED_OUT);
}

#[tokio::test]
async fn a_gate_sees_who_asks_and_what_it_notes_survives_its_failure() {
    let pays = gate_with_call("pays", "x", |call: cantrip_circle::gate::Call, _: NoArguments| async move {
        assert_eq!(call.idempotency_key.as_deref(), Some("key"));
        let cost: Money = "0.25 USD".parse().expect("an amount");
        call.effects.record_cost(cost);
        assert!(call.identity.is_none(), "this fails after it has paid");
        Ok::<_, Refusal>(1)
    });
    let circle = circle([pays.idempotent().into()], json!({}));
    let executed = execute(&circle, "pays", json!({}), StopSignal::never()).await;
    assert_code(&executed.guarded.reply, codes::CRASH);
    assert_eq!(executed.effects.cost, Some("0.25 USD".parse().expect("an amount")));
}

#[tokio::test]
async fn a_stop_ends_a_gate_that_waits_with_the_reason_it_was_given() {
    let entered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&entered);
    let waits = gate("waits", "x", move |_: NoArguments| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Result<u8, Refusal>>()
    });
    let circle = circle([waits.into()], json!({}));
    let (stopper, stop) = Stopper::new();
    let stopping = async {
        while entered.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        stopper.stop(StopReason::Ward { ward: "timeout".into(), limit: "5 s".into() });
    };
    let (executed, ()) = tokio::join!(execute(&circle, "waits", json!({}), stop), stopping);
    assert_code(&executed.guarded.reply, codes::WARD_REACHED);
}

struct Brief {
    promises: GateSpec,
    begun: Arc<Notify>,
    finish: Arc<Notify>,
}

impl Gate for Brief {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, _: cantrip_circle::gate::Call) -> Result<ReplyDraft<Success>, Refusal> {
        self.begun.notify_one();
        self.finish.notified().await;
        Ok(codes::gate_ok("brief").value("finished"))
    }
}

#[tokio::test]
async fn a_gate_that_promises_to_be_brief_finishes_what_it_has_begun() {
    let (begun, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let promises = GateSpec::new("brief", "x", json!({"type": "object"})).brief();
    let circle = circle([Brief { promises, begun: begun.clone(), finish: finish.clone() }.into()], json!({}));
    let (stopper, stop) = Stopper::new();
    let stopping = async {
        begun.notified().await;
        stopper.stop(StopReason::Outside { actor: "operator".into(), reason: "cancelled".into() });
        finish.notify_one();
    };
    let (executed, ()) = tokio::join!(execute(&circle, "brief", json!({}), stop), stopping);
    assert_code(&executed.guarded.reply, codes::GATE_OK);
}

/// A gate that fails where it is asked about a call, before the call is made.
struct Faulty {
    promises: GateSpec,
    question: &'static str,
    entered: Arc<AtomicUsize>,
}

impl Faulty {
    fn answer<T: Default>(&self, question: &str) -> T {
        assert_ne!(self.question, question, "a bug of this gate");
        T::default()
    }
}

impl Gate for Faulty {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    fn resource_accesses(&self, _: &Map<String, Value>) -> Vec<cantrip_circle::ward::ResourceAccess> {
        self.answer("what it touches")
    }

    fn protected_change(&self, _: &Map<String, Value>) -> Option<cantrip_circle::gate::ProtectedChange> {
        self.answer("what it changes")
    }

    fn worst_cost(&self, _: &Map<String, Value>) -> Option<Money> {
        self.answer("what it costs")
    }

    async fn call(&self, _: cantrip_circle::gate::Call) -> Result<ReplyDraft<Success>, Refusal> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        Ok(codes::gate_ok("faulty").value("entered"))
    }
}

#[tokio::test]
async fn a_call_about_which_no_decision_can_be_made_is_not_made() {
    for question in ["what it touches", "what it changes", "what it costs"] {
        let entered = Arc::new(AtomicUsize::new(0));
        let promises = GateSpec::new("faulty", "x", json!({"type": "object"}));
        let gate = Faulty { promises, question, entered: entered.clone() };
        let circle = circle([gate.into(), builtin::echo()], json!({"restrict": {"paths": ["data"]}}));
        assert_code(&call(&circle, "faulty", json!({})).await, codes::POLICY_FAILED);
        assert_eq!(entered.load(Ordering::Relaxed), 0, "{question}");
        // The next call is decided as ever.
        assert_code(&call(&circle, "echo", json!({"text": "1"})).await, codes::GATE_OK);
    }
}

struct Person;

impl Human for Person {
    async fn ask(&self, identity: Option<&Identity>, question: Question) -> Result<String, AskError> {
        assert!(identity.is_some());
        match question.question.as_str() {
            "late" => Err(AskError::Expired { seconds: 60 }),
            "rude" => Err(AskError::Refused { actor: "ada".into(), reason: "no".into() }),
            "gone" => Err(AskError::Failed { cause: "the line is down".into() }),
            _ => Ok(question.choices.first().cloned().unwrap_or_else(|| "yes".into())),
        }
    }
}

#[tokio::test]
async fn a_person_answers_refuses_or_stays_away() {
    let circle = circle([builtin::ask_human(Person)], json!({}));
    let answered = call(&circle, "ask_human", json!({"question": "which?", "choices": ["a", "b"]})).await;
    assert_code(&answered, codes::GATE_OK);
    assert_eq!(value(&answered), "a");
    assert_code(&call(&circle, "ask_human", json!({"question": "late"})).await, codes::NO_DECISION);
    assert_code(&call(&circle, "ask_human", json!({"question": "rude"})).await, codes::APPROVAL_REFUSED);
    assert_code(&call(&circle, "ask_human", json!({"question": "gone"})).await, codes::GATE_FAILED);
    assert_code(&call(&circle, "ask_human", json!({"question": ""})).await, codes::SCHEMA);
}

struct Thread;

impl OwnThread for Thread {
    async fn read(&self, _: &Identity, passage: ThreadQuery) -> Result<Value, ThreadReadError> {
        match passage.turn {
            None => Ok(json!([{"turn": passage.from.unwrap_or(1)}])),
            Some(TurnName::Number(1)) => Ok(json!({"turn": 1})),
            Some(TurnName::Number(2)) => Err(ThreadReadError::Failed { cause: "locked".into() }),
            Some(TurnName::Number(_)) => Err(ThreadReadError::NotFound),
            Some(TurnName::Id(_)) => Err(ThreadReadError::NotOwn),
        }
    }
}

#[tokio::test]
async fn an_entity_reads_its_own_thread_and_no_other() {
    let circle = circle([builtin::loom(Thread)], json!({}));
    assert_eq!(value(&call(&circle, "loom", json!({"from": 3})).await), &json!([{"turn": 3}]));
    assert_code(&call(&circle, "loom", json!({"turn": 1})).await, codes::READ);
    assert_code(&call(&circle, "loom", json!({"turn": 9})).await, codes::NOT_FOUND);
    let other = call(&circle, "loom", json!({"turn": "turn_06cyf9k2vtd3m8x1q7hbz4n5rw"})).await;
    assert_code(&other, codes::READ_REFUSED);
    assert_eq!(other.data()["rule"], "not_own");
    assert_code(&call(&circle, "loom", json!({"turn": 2})).await, codes::GATE_FAILED);
}

#[test]
fn a_conversation_shows_one_tool_per_gate_in_a_stable_order() {
    let circle = circle([builtin::echo(), builtin::read(None)], json!({}));
    let shown = Conversation.present(&circle, ToolMode::Tool);
    assert_eq!(shown.tools, circle.definitions());
    assert_eq!(shown, Conversation.present(&circle.clone(), ToolMode::Tool));
    let names: Vec<_> = shown.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["done", "echo", "read"]);
    let said = GateCall { tool_call_id: "c1".into(), gate: "echo".into(), args: json!({"text": 1}) };
    assert!(matches!(Conversation.interpret(&circle, &said), CallTarget::Gate(args) if args == json!({"text": 1})));
}
