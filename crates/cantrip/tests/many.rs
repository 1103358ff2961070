//! Many concurrent entities: waiting parents do not block others, and idle sandboxes are released and rebuilt.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use cantrip::{Cantrip, CantripBuilder, CastOptions, Runtime};
use cantrip_circle::gate::builtin;
use cantrip_circle::{Medium, MediumKind};
use cantrip_crystal::{Crystal, Request, Response};
use cantrip_loom::{Loom, MemoryLoom, PageRequest};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::future::join_all;
use serde_json::json;
use support::{Acting, Count, Overlap, counting, intent_of, memory, said_before, slow, stores};

fn coding(crystal: impl Crystal + 'static, medium: &Arc<Javascript>) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal)
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::clone(medium) as Arc<dyn Medium>)
        .gate(builtin::done())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
        .wards(&json!({"max_turns": 10, "max_depth": 2}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_parents_that_wait_for_their_children_all_come_to_their_end() {
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    let children = Overlap::default();
    let crystal = Acting(|request: &Request| match intent_of(request).as_str() {
        "child" => Response::code("done(slow(50))"),
        number => Response::code(format!("done([{number}, call_agent('child')])")),
    });
    let cantrip = coding(crystal, &medium).gate(slow("slow", &children)).build().unwrap();
    let runtime = Runtime::new(MemoryLoom::new());
    let casts = (0..1_000).map(|n| {
        let (runtime, cantrip) = (runtime.clone(), cantrip.clone());
        tokio::spawn(async move { runtime.cast(&cantrip, CastOptions::on(n.to_string())).await })
    });
    for (n, cast) in join_all(casts).await.into_iter().enumerate() {
        let cast = cast.unwrap();
        assert_eq!(cast.answer(), Some(&json!([n, 50])), "{:?}", cast.reply());
    }
    assert_eq!(children.ended().len(), 1_000);
    assert!(children.most() > 2, "a child that waits holds no thread: {}", children.most());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parents_of_one_tree_that_wait_hold_no_place_and_no_batch_has_more_than_eight() {
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    let (children, parents) = (Overlap::default(), Count::default());
    let seen = parents.clone();
    let crystal = Acting(move |request: &Request| match intent_of(request).as_str() {
        "root" => Response::code("done(call_agent_batch(Array.from({length: 50}, (_, n) => 'parent ' + n)).join())"),
        "child" => Response::code("done(slow(5))"),
        _ => {
            seen.up();
            Response::code("done(call_agent_batch(Array.from({length: 20}, () => 'child')).length)")
        }
    });
    let cantrip = coding(crystal, &medium).gate(slow("slow", &children)).build().unwrap();
    let cast = memory().cast(&cantrip, CastOptions::on("root")).await;
    assert_eq!(cast.answer(), Some(&json!(vec!["20"; 50].join(","))), "{:?}", cast.reply());
    assert_eq!((parents.get(), children.ended().len()), (50, 1_000));
    assert!(children.most() <= 64 && children.most() > 8, "{}", children.most());
}

fn sandboxes(medium: &Arc<Javascript>) -> usize {
    let shown = format!("{medium:?}");
    let digits: String = shown.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Waits until there are at most `most` sandboxes: each is freed on its own thread, a moment later.
async fn settles_at(medium: &Arc<Javascript>, most: usize) {
    for _ in 0..5_000 {
        if sandboxes(medium) <= most {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{} sandboxes are left, not {most}", sandboxes(medium));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sandboxes_beyond_the_bound_are_given_up_longest_idle_first_and_come_back_as_they_were() {
    for (store, _folder) in stores() {
        let medium = Arc::new(Javascript::start(Options::default()).unwrap());
        let (runtime, count) = (support::house_of(store, 1).with_idle_sandboxes_max(3), Count::default());
        let crystal = Acting(|request: &Request| match said_before(request) {
            0 => Response::code("var mine = [count(context), Math.random(), Date.now()]; done(mine)"),
            _ => Response::code("done(mine)"),
        });
        let cantrip = coding(crystal, &medium).gate(counting("count", &count)).build().unwrap();
        let mut entities = Vec::new();
        for n in 0..8 {
            let entity = runtime.summon(&cantrip, Some(json!(n))).await.unwrap();
            let first = entity.send("set").await.answer().cloned().unwrap();
            entities.push((entity, first));
            settles_at(&medium, 3).await;
        }
        assert_eq!(sandboxes(&medium), 3, "the bound is used");
        // Under load: all of them concurrently, twice; released sandboxes are rebuilt from the loom.
        for _ in 0..2 {
            let sends = entities.iter().map(|(entity, first)| async move {
                let cast = entity.send("get").await;
                assert_eq!(cast.answer(), Some(first), "{:?}", cast.reply());
            });
            join_all(sends).await;
            settles_at(&medium, 3).await;
        }
        assert_eq!(count.get(), 8, "no gate ran again");
        let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        assert!(turns.iter().flat_map(|turn| &turn.outputs).all(|output| output.environment_lost.is_none()));

        // Disposed entities make room at once, and dropped ones too.
        let kept = entities.split_off(4);
        drop(entities);
        for (entity, _) in &kept {
            entity.dispose();
            assert_code(entity.send("get").await.reply(), codes::WRONG_STATE);
        }
        settles_at(&medium, 0).await;
    }
}

#[tokio::test]
async fn a_sandbox_that_would_take_too_long_to_build_again_is_lost_and_its_entity_is_told() {
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    let runtime = memory().with_idle_sandboxes_max(0).with_rebuild_cpu_max(Duration::from_millis(1));
    let crystal = Acting(|request: &Request| match said_before(request) {
        0 => Response::code("var n = 0; for (let i = 0; i < 2000000; i++) n += i; done(1)"),
        1 => Response::code("typeof n"),
        _ => Response::code("done(typeof n)"),
    });
    let cantrip = coding(crystal, &medium).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    assert_eq!(entity.send("count").await.answer(), Some(&json!(1)));
    settles_at(&medium, 0).await;
    let cast = entity.send("and now?").await;
    assert_eq!(cast.answer(), Some(&json!("undefined")), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let lost = "[environment lost: rebuild too long]";
    assert_eq!(turns[1].outputs[0].environment_lost.as_deref(), Some(lost));
    assert!(cantrip_loom::render::observation(&turns[1], "javascript").starts_with(lost));
    // With enough time, it is rebuilt as it was.
    let patient = memory().with_idle_sandboxes_max(0);
    let entity = patient.summon(&cantrip, None).await.unwrap();
    assert_eq!(entity.send("count").await.answer(), Some(&json!(1)));
    settles_at(&medium, 0).await;
    assert_eq!(entity.send("and now?").await.answer(), Some(&json!("number")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_of_one_cantrip_that_act_at_once_share_no_variable_and_no_chance() {
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    let runtime = memory();
    let crystal = Acting(|request: &Request| match said_before(request) {
        0 => Response::code("var drawn = []; var mine = context; done(typeof theirs)"),
        _ => Response::code(
            "globalThis['of' + mine] = 1; drawn.push(Math.random()); done([mine, drawn, Object.keys(globalThis).filter(k => k.startsWith('of'))])",
        ),
    });
    let cantrip = coding(crystal, &medium).build().unwrap();
    let entities: Vec<_> = join_all((0..16).map(|n| runtime.summon(&cantrip, Some(json!(n)))))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let mut drawn = std::collections::BTreeSet::new();
    for round in 0..4 {
        let answers = join_all(entities.iter().map(|entity| entity.send("go"))).await;
        for (n, cast) in answers.iter().enumerate() {
            let answer = cast.answer().unwrap_or_else(|| panic!("{:?}", cast.reply()));
            if round == 0 {
                assert_eq!(answer, "undefined");
                continue;
            }
            assert_eq!((&answer[0], answer[1].as_array().unwrap().len()), (&json!(n), round));
            assert_eq!(answer[2], json!([format!("of{n}")]), "what another one set is not there");
            assert!(drawn.insert(answer[1][round - 1].to_string()), "two drew the same number");
        }
    }
    assert_eq!(drawn.len(), 48);
}
