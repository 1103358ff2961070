//! The laws of wards: their order does not matter, and a child is never less restricted than its parent.

use std::time::Duration;

use cantrip_circle::Wards;
use cantrip_circle::ward::{Approval, Loops, MediumLimits, Restriction, WardRule};
use proptest::prelude::*;
use serde_json::json;

fn read(written: serde_json::Value) -> Wards {
    Wards::parse(&written).unwrap_or_else(|faults| panic!("{written} can be read: {faults:?}"))
}

fn some(max: u64) -> impl Strategy<Value = Option<u64>> {
    prop::option::of(1..=max)
}

fn names() -> impl Strategy<Value = std::collections::BTreeSet<String>> {
    prop::collection::btree_set("[a-c]", 0..3)
}

fn restriction() -> impl Strategy<Value = Restriction> {
    let lists = || prop::option::of(prop::collection::vec("[a-c]", 1..3));
    (lists(), lists(), lists()).prop_map(|(paths, hosts, methods)| {
        let mut restriction = Restriction::default();
        if let Some(paths) = paths {
            restriction = restriction.and(&Restriction::paths(paths).expect("letters are patterns"));
        }
        if let Some(hosts) = hosts {
            restriction = restriction.and(&Restriction::hosts(hosts));
        }
        if let Some(methods) = methods {
            restriction = restriction.and(&Restriction::methods(methods));
        }
        restriction
    })
}

fn medium() -> impl Strategy<Value = MediumLimits> {
    (some(9), some(9), some(9), some(9), some(9)).prop_map(|(memory_bytes, cpu, wall, output_bytes, stack_bytes)| {
        let time = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        MediumLimits { memory_bytes, cpu: time(cpu), wall: time(wall), output_bytes, stack_bytes }
    })
}

fn wards() -> impl Strategy<Value = Wards> {
    let numbers = (some(9), some(9), some(9), prop::option::of(0..4_u64), some(9));
    let money = prop::collection::vec((0..9_i64, 0..2_usize), 0..3);
    let flags = (any::<bool>(), any::<bool>(), prop::option::of("[a-c]"), prop::option::of((2..5_u64, 2..5_u64)));
    let gates = (names(), names(), any::<bool>());
    (numbers, money, flags, gates, restriction(), medium()).prop_map(
        |((turns, timeout, tokens, depth, calls), money, (done, trifecta, allow, loops), gates, restrict, medium)| {
            let (remove_gate, approval, every) = gates;
            let written: Vec<String> =
                money.iter().map(|(units, kind)| format!("{units} {}", ["USD", "EUR"][*kind])).collect();
            let costs = if written.is_empty() { Wards::default() } else { read(json!({"max_cost": written})) };
            Wards {
                max_turns: turns,
                timeout: timeout.map(Duration::from_secs),
                max_tokens: tokens,
                max_cost: costs.max_cost,
                max_depth: depth,
                max_gate_calls: calls,
                remove_gate,
                restrict,
                require_done_tool: done,
                require_approval: if every { Approval::Every } else { Approval::Gates(approval) },
                loop_detected: loops.map(|(repeats, cycles)| Loops { repeats, cycles }),
                trifecta,
                allow_trifecta: allow,
                medium,
            }
        },
    )
}

/// Returns true if a number is no wider than another; none is unbounded.
fn within<T: Ord>(narrow: Option<T>, wide: Option<T>) -> bool {
    match (narrow, wide) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(narrow), Some(wide)) => narrow <= wide,
    }
}

fn narrower(narrow: &Wards, wide: &Wards) -> bool {
    let paths = ["a", "b", "c", "a/b", "c/a"];
    let gates = ["a", "b", "c", "read", "done"];
    within(narrow.max_turns, wide.max_turns)
        && within(narrow.timeout, wide.timeout)
        && within(narrow.max_tokens, wide.max_tokens)
        && narrow.depth() <= wide.depth()
        && narrow.gate_calls() <= wide.gate_calls()
        && wide.max_cost.iter().all(|cost| {
            narrow.max_cost.iter().any(|own| own.currency() == cost.currency() && own.micros() <= cost.micros())
        })
        && wide.remove_gate.is_subset(&narrow.remove_gate)
        && paths.iter().all(|path| !narrow.restrict.allows_path(path) || wide.restrict.allows_path(path))
        && paths.iter().all(|host| !narrow.restrict.allows_host(host, None) || wide.restrict.allows_host(host, None))
        && paths.iter().all(|name| !narrow.restrict.allows_method(name) || wide.restrict.allows_method(name))
        && narrow.require_done_tool >= wide.require_done_tool
        && gates.iter().all(|gate| narrow.require_approval.requires(gate) >= wide.require_approval.requires(gate))
        && within(narrow.loop_detected.map(|loops| loops.repeats), wide.loop_detected.map(|loops| loops.repeats))
        && narrow.trifecta >= wide.trifecta
        && within(narrow.medium.memory_bytes, wide.medium.memory_bytes)
        && within(narrow.medium.cpu, wide.medium.cpu)
        && within(narrow.medium.wall, wide.medium.wall)
        && within(narrow.medium.output_bytes, wide.medium.output_bytes)
        && within(narrow.medium.stack_bytes, wide.medium.stack_bytes)
}

proptest! {
    #[test]
    fn in_any_order_and_however_often_wards_come_to_the_same(a in wards(), b in wards(), c in wards()) {
        prop_assert_eq!(a.and(&b), b.and(&a));
        prop_assert_eq!(a.and(&b).and(&c), a.and(&b.and(&c)));
        prop_assert_eq!(a.and(&a), a.clone());
        prop_assert_eq!(a.and(&Wards::default()), a);
    }

    #[test]
    fn together_they_are_narrower_than_each(mut a in wards(), mut b in wards()) {
        // An undeclared ward is a default, so a declared number may exceed it; below a parent it may not.
        for wards in [&mut a, &mut b] {
            wards.max_depth.get_or_insert(1);
            wards.max_gate_calls.get_or_insert(200);
        }
        let both = a.and(&b);
        prop_assert!(narrower(&both, &a) && narrower(&both, &b));
    }

    #[test]
    fn a_child_is_never_freer_than_its_parent_however_deep(
        root in wards(), asked in prop::collection::vec(wards(), 1..4)
    ) {
        let mut above = root;
        for asked in asked {
            let child = above.for_child(&asked);
            prop_assert!(narrower(&child, &above), "{child:?} is freer than {above:?}");
            prop_assert_eq!(child.depth(), above.depth().saturating_sub(1).min(asked.max_depth.unwrap_or(u64::MAX)));
            prop_assert_eq!(&child.allow_trifecta, &above.allow_trifecta);
            above = child;
        }
    }

    #[test]
    fn what_is_recorded_reads_back(a in wards()) {
        prop_assert_eq!(Wards::parse(&a.to_value()), Ok(a));
    }
}

#[test]
fn numbers_resolve_by_minimum_and_booleans_by_or() {
    let wards = read(json!([
        {"max_turns": 50, "require_done_tool": false}, {"max_turns": 10, "memory": "64MiB"},
        {"max_turns": 100, "require_done_tool": true, "memory": "32MiB"},
    ]));
    assert_eq!(wards.max_turns, Some(10));
    assert!(wards.require_done_tool);
    assert_eq!(wards.medium.memory_bytes, Some(32 << 20));
    let parent = read(json!({"max_turns": 5, "cpu": "1s"}));
    let child = parent.for_child(&read(json!({"max_turns": 20, "cpu": "9s", "wall": "1h"})));
    assert_eq!((child.max_turns, child.medium.cpu), (Some(5), Some(Duration::from_secs(1))));
    assert_eq!(child.medium.wall, Some(Duration::from_secs(60)), "a default of the parent's holds for its child");
    assert_eq!(child.depth(), 0, "one level unless declared");
}

#[test]
fn wards_are_read_as_people_write_them() {
    let wards = read(json!({
        "timeout": "5m", "max_cost": "0.50 USD", "remove_gate": "call_entity", "require_approval": ["write", "edit"],
        "loop_detected": {"repeats": 4}, "stack": 4096, "output": "16KiB", "cpu": "250ms", "max_tokens": 1e6,
    }));
    assert_eq!(wards.timeout, Some(Duration::from_secs(300)));
    assert_eq!(wards.max_cost[0].to_string(), "0.50 USD");
    assert!(wards.remove_gate.contains("call_agent"), "an older name means the same gate");
    assert!(wards.require_approval.requires("edit") && !wards.require_approval.requires("read"));
    assert_eq!(wards.loop_detected, Some(Loops { repeats: 4, cycles: 3 }));
    assert_eq!((wards.medium.stack_bytes, wards.medium.output_bytes), (Some(4096), Some(16 << 10)));
    assert_eq!(wards.max_tokens, Some(1_000_000));
    assert_eq!(read(json!({"timeout": 90})).timeout, Some(Duration::from_secs(90)));
    assert_eq!(read(json!(null)), Wards::default());
    let every = read(json!({"require_approval": true})).require_approval;
    assert!(every.requires("read") && !every.requires("done"));
}

#[test]
fn every_fault_is_told_with_its_place() {
    for (ward, value, rule) in [
        ("max_turns", json!(0), WardRule::TooSmall),
        ("max_turns", json!(-3), WardRule::Negative),
        ("max_turns", json!("ten"), WardRule::NotANumber),
        ("max_turns", json!(1.5), WardRule::NotANumber),
        ("timeout", json!("soon"), WardRule::NotADuration),
        ("timeout", json!("0s"), WardRule::TooSmall),
        ("timeout", json!("99999999999999999999s"), WardRule::NotADuration),
        ("max_cost", json!("cheap"), WardRule::NotMoney),
        ("max_cost", json!(1), WardRule::NotMoney),
        ("remove_gate", json!(5), WardRule::NotANameOrList),
        ("remove_gate", json!([""]), WardRule::NotANameOrList),
        ("require_done_tool", json!("yes"), WardRule::NotABoolean),
        ("restrict", json!("data"), WardRule::NotATable),
        ("restrict", json!({"paths": ["["]}), WardRule::NotAPattern),
        ("restrict", json!({"ports": [1]}), WardRule::NotANameOrList),
        ("restrict", json!({"ports": ["1"]}), WardRule::Unknown { nearest: None }),
        ("allow_trifecta", json!(" "), WardRule::NotAReason),
        ("loop_detected", json!({"repeats": 1}), WardRule::TooSmall),
        ("memory", json!("lots"), WardRule::NotASize),
        ("max_turn", json!(3), WardRule::Unknown { nearest: Some("max_turns") }),
        ("colour", json!("red"), WardRule::Unknown { nearest: None }),
    ] {
        let faults = Wards::parse(&json!([{"max_depth": 1}, {ward: value.clone()}])).expect_err("it cannot be");
        assert_eq!(faults.len(), 1, "{ward}: {value}");
        assert_eq!((faults[0].path.as_str(), &faults[0].rule), (format!("/1/{ward}").as_str(), &rule), "{value}");
    }
    assert_eq!(Wards::parse(&json!({"a": 1, "b": 2})).expect_err("neither is a ward").len(), 2);
    assert!(Wards::parse(&json!("max_turns")).is_err());
}

#[test]
fn patterns_of_hosts_and_paths_mean_what_they_look_like() {
    let hosts = Restriction::hosts(["Example.com", "*.wild.org", "api.test:8443", "[::1]:80"]);
    for (host, port, allowed) in [
        ("example.com", Some(443), true),
        ("EXAMPLE.COM.", Some(80), true),
        ("www.example.com", Some(443), false),
        ("a.wild.org", Some(443), true),
        ("wild.org", Some(443), false),
        ("evilwild.org", Some(443), false),
        ("api.test", Some(8443), true),
        ("api.test", Some(443), false),
        ("[::1]", Some(80), true),
        ("example.com.evil.org", None, false),
    ] {
        assert_eq!(hosts.allows_host(host, port), allowed, "{host} {port:?}");
    }
    let paths = Restriction::paths(["data/*.csv", "docs/**", "src"]).expect("patterns");
    for (path, allowed) in [
        ("data/a.csv", true),
        ("data/deep/a.csv", false),
        ("data", false),
        ("docs", true),
        ("docs/a/b", true),
        ("src/main.rs", true),
        ("srcs/main.rs", false),
        ("", false),
    ] {
        assert_eq!(paths.allows_path(path), allowed, "{path}");
    }
    assert!(Restriction::default().allows_path("anything"));
    let both = paths.and(&Restriction::paths(["**/*.rs"]).expect("a pattern"));
    assert!(both.allows_path("src/main.rs") && !both.allows_path("src/main.py"));
}
