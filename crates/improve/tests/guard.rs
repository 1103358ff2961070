//! Guards: a canary that is worse is told about or removed, once, and one with too few units is left alone.

use std::sync::Arc;

use cantrip::canon::{Clock, IdSource, Timestamp};
use cantrip::crystal::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, Request, Script, ScriptedCrystal,
};
use cantrip::loom::{AnyLoom, Contracts, Improvements, Message, PageRequest};
use cantrip::{MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{
    Action, Canary, ChangeAuthor, CompiledId, ContractRow, GuardAction, OriginRow, Pointer, PointerAudit,
    PointerChange, PointerOperation, Provenance, Purpose, ReceiptId, RolloutSide, SignatureOrigin, VerdictWord,
};
use cantrip_ds::dataset::{GivenVerdict, Verdicts};
use cantrip_ds::{PredictOptions, Predictor, TraceArchive};
use cantrip_improve::guard::{
    GuardEvent, GuardKeeper, GuardSetting, LiveStanding, LiveView, Worse, look_at_units, units_of_look,
};
use cantrip_improve::limits::GUARD_MARGIN_MICRO;
use cantrip_improve::live::{LiveCall, LiveWindow, live_units, live_window};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_any;
use serde_json::json;

use crate::support::{done, replied, shout, stores};

const ONE: i64 = 1_000_000;

/// A crystal that answers, with something that does not fit the schema where it is told to be careless.
#[derive(Clone)]
struct Clerk(&'static str);

impl Crystal for Clerk {
    fn name(&self) -> &str {
        self.0
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let said = (0..request.messages.len()).filter_map(|at| request.messages.get(at)).map(|message| match message {
            Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.text(),
            Message::Assistant { .. } => String::new(),
        });
        let is_careless = said.collect::<Vec<_>>().join("\n").contains("carelessly");
        let response = done(if is_careless { json!({"words": "HEY"}) } else { json!({"text": "HEY"}) });
        ScriptedCrystal::new(self.name(), Script::new([response])).ask(request, heard).await
    }

    fn profile(&self) -> Profile {
        Profile::of("scripted/shout")
    }

    fn price(&self) -> Price {
        Price::Free
    }
}

/// A store with a pointer whose canary half of the callers get.
struct Rollout {
    loom: AnyLoom,
    predictor: Predictor,
    verdicts: Verdicts,
    clock: Arc<MachineClock>,
    ids: Arc<IdSource>,
    primary: CompiledId,
    canary: CompiledId,
    callers: u64,
}

impl Rollout {
    async fn new(loom: &AnyLoom, instructions: &str) -> Self {
        let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
        let runtime = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(&ids));
        let crystal = AnyCrystal::new(Clerk("scripted/clerk"));
        let crystals = move |_: Option<&str>| Ok(crystal.clone());
        let predictor = Predictor::new(runtime, crystals, TraceArchive::inline(), clock.clone(), Arc::clone(&ids));
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let verdicts = Verdicts::new(loom.clone(), clock.clone(), Arc::clone(&ids));
        let primary = shout().base_artifact().id();
        let canary = primary.clone();
        let mut rollout = Self { loom: loom.clone(), predictor, verdicts, clock, ids, primary, canary, callers: 0 };
        rollout.canary = rollout.artifact(instructions).await;
        let (artifact, canary) = (rollout.primary.clone(), rollout.canary.clone());
        rollout.change(PointerOperation::Set { artifact, seed: None, metadata: None }).await;
        rollout.change(PointerOperation::Canary(Canary { artifact: canary, percent: 50 })).await;
        rollout
    }

    async fn artifact(&self, instructions: &str) -> CompiledId {
        let at = self.clock.now().wall;
        let origin = |id| OriginRow::new(id, Provenance::Manual, "ann", at);
        let value = json!({ "instructions": instructions });
        self.predictor.catalog().add_artifact(&value, &shout(), origin).await.unwrap().id()
    }

    async fn change(&self, change: PointerOperation) {
        let at = self.clock.now().wall;
        let by = ChangeAuthor { audit_id: self.ids.next(at), actor: "ann".to_owned(), reason: None, at };
        let stored = self.loom.pointer(shout().id().clone()).await.unwrap();
        let expected_version = stored.map_or(0, |pointer| pointer.version);
        let change = PointerChange { signature_id: shout().id().clone(), expected_version, change, by };
        self.predictor.catalog().write_rows(vec![ContractRow::Pointer(Box::new(change))]).await.unwrap();
    }

    /// Serves this many callers of one side. Each is given a verdict if `good` is not none: good for that many of ten.
    async fn serve(&mut self, side: RolloutSide, callers: usize, good: Option<usize>) {
        let pointer = self.pointer().await;
        for number in 0..callers {
            let key = loop {
                self.callers += 1;
                let key = format!("caller-{}", self.callers);
                if pointer.variant(&key).variant == side {
                    break key;
                }
            };
            let how = PredictOptions { canary_key: Some(key), repair_attempts: Some(0), ..PredictOptions::default() };
            let receipt = self.predict(how).await;
            if let Some(good) = good {
                let verdict = if number % 10 < good { VerdictWord::Good } else { VerdictWord::Bad };
                let (expected, labels, note, by) = (None, Vec::new(), None, "ann".to_owned());
                self.verdicts.give(GivenVerdict { receipt, verdict, expected, labels, note, by }).await.unwrap();
            }
        }
    }

    async fn predict(&self, how: PredictOptions) -> ReceiptId {
        let reply = self.predictor.predict(shout().id(), &json!({"text": "hey"}), how).await;
        reply.predicted.receipt.unwrap_or_else(|| panic!("{:?}", reply.guarded.reply))
    }

    async fn pointer(&self) -> Pointer {
        self.loom.pointer(shout().id().clone()).await.unwrap().unwrap()
    }

    async fn audits(&self) -> Vec<PointerAudit> {
        self.loom.pointer_audits(shout().id().clone(), PageRequest::FIRST).await.unwrap().items
    }

    /// Returns the guards as another process has them.
    fn keeper(&self) -> GuardKeeper {
        GuardKeeper::new(self.loom.clone(), self.clock.clone(), Arc::new(IdSource::new(MachineEntropy)))
    }

    async fn set(&self, action: GuardAction) {
        let setting =
            GuardSetting { signature: shout().id().clone(), action, margin_micro: None, by: "ann".to_owned() };
        self.keeper().set(setting).await.unwrap();
    }

    async fn look(&self) -> LiveView {
        self.keeper().look(shout().id()).await.unwrap()
    }
}

#[tokio::test]
async fn a_canary_that_is_worse_is_only_told_about_unless_its_guard_may_remove_it() {
    for (loom, _folder) in stores() {
        let mut rollout = Rollout::new(&loom, "Say it.").await;
        rollout.serve(RolloutSide::Primary, 50, Some(9)).await;
        rollout.serve(RolloutSide::Canary, 49, Some(4)).await;
        let early = rollout.look().await;
        assert_eq!((early.standing, early.looks, early.next_look_units), (LiveStanding::TooFew, 0, Some(50)));
        assert_eq!((early.report.canary.labelled, early.report.primary.labelled), (49, 50));
        assert_eq!(loom.guard(shout().id().clone()).await.unwrap(), None, "nothing was counted");
        rollout.serve(RolloutSide::Canary, 1, Some(0)).await;

        // A canary without a setting is watched too.
        let told = rollout.look().await;
        assert_eq!((told.standing, told.looks, told.is_cleared), (LiveStanding::Worse, 1, false));
        assert_eq!((told.action, told.margin_micro), (GuardAction::Alert, GUARD_MARGIN_MICRO));
        let [event] = told.events.as_slice() else { panic!("{:?}", told.events) };
        assert_eq!((event.event, event.worse, event.k, event.audit_id), (GuardEvent::WORSE, Worse::Score, 1, None));
        assert_eq!((&event.canary, &event.primary), (&rollout.canary, &rollout.primary));
        assert!(event.reason.contains(&event.live_id) && event.reason.contains("difference -0.5"), "{}", event.reason);
        assert_eq!(rollout.pointer().await.canary_artifact.as_ref(), Some(&rollout.canary), "nothing was changed");
        let again = rollout.look().await;
        assert_eq!((again.standing, again.looks, again.events.is_empty()), (LiveStanding::Worse, 1, true));
        assert_eq!((again.last_look, again.next_look_units), (told.last_look, Some(100)));

        // The looks stay counted when the guard is set, so the next one is the second.
        rollout.set(GuardAction::Clear).await;
        let kept = loom.guard(shout().id().clone()).await.unwrap().unwrap();
        assert_eq!((kept.action, kept.looks, kept.by.as_str()), (GuardAction::Clear, 1, "ann"));
        assert!(rollout.look().await.events.is_empty(), "there are no more units than before");
        rollout.serve(RolloutSide::Primary, 20, Some(9)).await;
        rollout.serve(RolloutSide::Canary, 50, Some(4)).await;
        let cleared = rollout.look().await;
        assert_eq!((cleared.is_cleared, cleared.looks, cleared.events.len()), (true, 2, 1));
        let (pointer, audits) = (rollout.pointer().await, rollout.audits().await);
        assert_eq!((pointer.canary_artifact.as_ref(), pointer.canary_percent), (None, 0));
        assert_eq!(pointer.primary_artifact, rollout.primary, "a guard promotes nothing");
        let last = audits.last().unwrap();
        assert_eq!((last.action, last.actor.as_str()), (Action::Clear, "guard"));
        assert_eq!(last.reason.as_deref(), Some(cleared.events[0].reason.as_str()));
        assert_eq!(cleared.events[0].audit_id, Some(last.audit_id));
        let refused = rollout.keeper().look(shout().id()).await.unwrap_err();
        assert_any(&replied(refused).await, codes::WRONG_STATE.any());
        assert!(rollout.keeper().look_at_all().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn processes_that_look_at_once_make_one_audit() {
    for (loom, _folder) in stores() {
        let mut rollout = Rollout::new(&loom, "Say it.").await;
        rollout.set(GuardAction::Clear).await;
        rollout.serve(RolloutSide::Primary, 40, Some(10)).await;
        rollout.serve(RolloutSide::Canary, 50, Some(3)).await;
        let keepers: Vec<GuardKeeper> = (0..4).map(|_| rollout.keeper()).collect();
        let looks = futures_util::future::join_all(keepers.iter().map(GuardKeeper::look_at_all)).await;
        let events: Vec<GuardEvent> = looks.into_iter().flat_map(Result::unwrap).collect();
        assert_eq!(events.len(), 1, "{events:?}");
        let audits = rollout.audits().await;
        assert_eq!(audits.iter().filter(|audit| audit.actor == "guard").count(), 1);
        assert_eq!(audits.last().unwrap().audit_id, events[0].audit_id.unwrap());
        assert_eq!(loom.guard(shout().id().clone()).await.unwrap().unwrap().looks, 1);
    }
}

#[tokio::test]
async fn a_canary_that_fails_is_removed_without_anybodys_word() {
    let (loom, _folder) = stores().remove(0);
    let mut rollout = Rollout::new(&loom, "Say it carelessly.").await;
    rollout.set(GuardAction::Clear).await;
    rollout.serve(RolloutSide::Primary, 60, None).await;
    rollout.serve(RolloutSide::Canary, 50, None).await;
    let found = rollout.look().await;
    assert_eq!((found.report.canary.failed, found.report.primary.failed), (Some(ONE), Some(0)));
    assert_eq!((found.report.canary.scored, found.report.score), (0, None));
    assert!(found.is_cleared);
    assert_eq!(found.events[0].worse, Worse::Failed);
}

#[tokio::test]
async fn only_calls_that_the_rollout_served_count() {
    let (loom, _folder) = stores().remove(0);
    let mut rollout = Rollout::new(&loom, "Say it.").await;
    // Before this change the canary was another one.
    rollout.serve(RolloutSide::Canary, 3, Some(0)).await;
    let other = rollout.artifact("Say it well.").await;
    rollout.change(PointerOperation::Canary(Canary { artifact: other.clone(), percent: 50 })).await;
    rollout.canary = other.clone();
    let first = live_window(&loom, shout().id()).await.unwrap().unwrap();
    rollout.change(PointerOperation::Canary(Canary { artifact: other.clone(), percent: 60 })).await;
    let window = live_window(&loom, shout().id()).await.unwrap().unwrap();
    assert_eq!((window.audit_id, window.first_version), (first.audit_id, 3), "another percentage is the same canary");
    assert_eq!((window.percent, window.pointer_version), (60, 4));
    let named = PredictOptions { artifact: Some(other.clone()), ..PredictOptions::default() };
    rollout.predict(named.clone()).await;
    rollout.predict(PredictOptions { purpose: Purpose::Eval, ..named }).await;
    assert_eq!(rollout.look().await.report.canary.calls, 0);
    rollout.serve(RolloutSide::Canary, 2, None).await;
    rollout.serve(RolloutSide::Primary, 3, Some(10)).await;
    let found = rollout.look().await.report;
    assert_eq!((found.canary.calls, found.canary.units, found.canary.labelled), (2, 2, 0));
    assert_eq!((found.primary.calls, found.primary.scored, found.primary.score), (3, 3, Some(ONE)));
    assert_eq!(found.score, None, "the canary has no score");

    // With another primary the comparison begins anew.
    let third = rollout.artifact("Say it best.").await;
    rollout.change(PointerOperation::Set { artifact: third, seed: None, metadata: None }).await;
    let begun = live_window(&loom, shout().id()).await.unwrap().unwrap();
    assert_eq!((begun.first_version, &begun.canary), (5, &other));
    assert_eq!(rollout.look().await.report.primary.calls, 0);
    rollout.change(PointerOperation::Clear).await;
    assert_eq!(live_window(&loom, shout().id()).await.unwrap(), None);
}

#[tokio::test]
async fn the_looks_at_a_new_canary_are_counted_from_the_first() {
    let (loom, _folder) = stores().remove(0);
    let mut rollout = Rollout::new(&loom, "Say it.").await;
    for round in 0..2 {
        rollout.serve(RolloutSide::Primary, 40, Some(8)).await;
        rollout.serve(RolloutSide::Canary, 50, Some(8)).await;
        let looks = futures_util::future::join_all((0..3).map(|_| rollout.look())).await;
        assert!(looks.iter().all(|view| (view.looks, view.standing) == (1, LiveStanding::NotWorse)), "{round}");
        assert!(looks.iter().all(|view| view.events.is_empty()), "equal sides are not told about");
        let next = rollout.artifact(&format!("Say it in round {round}.")).await;
        rollout.change(PointerOperation::Canary(Canary { artifact: next.clone(), percent: 50 })).await;
        rollout.canary = next;
        assert_eq!(rollout.look().await.looks, 0);
    }
    let kept = loom.guard(shout().id().clone()).await.unwrap().unwrap();
    assert_eq!(kept.looks, 1, "{kept:?}");
}

#[tokio::test]
async fn a_margin_that_is_no_share_is_refused() {
    let (loom, _folder) = stores().remove(0);
    let rollout = Rollout::new(&loom, "Say it.").await;
    let signature = shout().id().clone();
    let action = GuardAction::Alert;
    let setting = GuardSetting { signature, action, margin_micro: Some(1_000_001), by: "ann".to_owned() };
    let refused = rollout.keeper().set(setting).await.unwrap_err();
    assert_any(&replied(refused).await, codes::LIMIT.any());
}

fn at(second: u64) -> Timestamp {
    "2026-02-19T02:00:00.000Z".parse::<Timestamp>().unwrap().after(std::time::Duration::from_secs(second))
}

fn window() -> LiveWindow {
    LiveWindow {
        signature_id: "@cantrip/text/Classify.v1".parse().unwrap(),
        audit_id: "aud_00000000000000000000000001".parse().unwrap(),
        since: at(0),
        first_version: 2,
        pointer_version: 2,
        canary: "art_81c1fe0d3fddf815ca1d64e85e6aa6fb".parse().unwrap(),
        primary: "art_fa314739a6ab692b5cd3d96708665e89".parse().unwrap(),
        percent: 10,
    }
}

/// Returns a call of a unit of its own.
fn call(side: RolloutSide, number: u64, score_micro: Option<i64>) -> LiveCall {
    LiveCall {
        side,
        owner: format!("user:{number:05}"),
        root_run: IdSource::seeded(number).next(at(number)),
        receipt_id: format!("rcpt_{number:032x}").parse().unwrap(),
        completed_at: at(number),
        has_failed: false,
        score_micro,
        currency: None,
        captured: number,
        latency_ms: number,
    }
}

#[test]
fn a_look_has_the_id_of_its_canary_and_its_number() {
    // Computed by hand from the definition, with another implementation of the hash.
    assert_eq!(window().live_id(1), "live_ea7d6629ad9871bcde0bd7a0");
    let other = LiveWindow { audit_id: "aud_00000000000000000000000002".parse().unwrap(), ..window() };
    assert_ne!(window().live_id(1), window().live_id(2));
    assert_ne!(window().live_id(1), other.live_id(1));
    let units: Vec<u64> = (1..=5).map(units_of_look).collect();
    assert_eq!(units, [50, 100, 200, 400, 800]);
    assert_eq!(units_of_look(200), u64::MAX);
}

#[test]
fn the_calls_of_one_root_run_are_one_unit() {
    let first = call(RolloutSide::Canary, 7, Some(ONE));
    let same = LiveCall { completed_at: at(3), score_micro: Some(0), ..first.clone() };
    let failed = LiveCall { has_failed: true, score_micro: None, ..first.clone() };
    let elsewhere = LiveCall { side: RolloutSide::Primary, ..first.clone() };
    let others = LiveCall { owner: "user:other".to_owned(), score_micro: None, ..first.clone() };
    let mut calls = vec![first.clone(), same.clone(), failed, same, elsewhere, others];
    let units = live_units(&calls);
    calls.reverse();
    assert_eq!(live_units(&calls), units, "the order of the calls does not matter");
    let told: Vec<(RolloutSide, Option<i64>, i64, Timestamp, bool)> = units
        .iter()
        .map(|unit| (unit.side, unit.score_micro, unit.failed_micro, unit.at, unit.is_labelled()))
        .collect();
    let wanted = [
        (RolloutSide::Primary, Some(ONE), 0, at(7), true),
        (RolloutSide::Canary, Some(333_333), 250_000, at(3), true),
        (RolloutSide::Canary, None, 0, at(7), false),
    ];
    assert_eq!(told, wanted);
}

#[test]
fn a_look_takes_the_first_units_whenever_it_is_made() {
    // The canary's first fifty labelled units are bad and all later ones are good; every third has no label.
    let mut calls = Vec::new();
    let mut labelled = 0;
    for number in 0..400 {
        calls.push(call(RolloutSide::Primary, 2 * number, Some(ONE)));
        let score = (number % 3 != 0).then_some(if labelled < 50 { 0 } else { ONE });
        labelled += u64::from(score.is_some());
        calls.push(call(RolloutSide::Canary, 2 * number + 1, score));
    }
    let units = live_units(&calls);
    let late = look_at_units(&window(), 1, &calls, &units, GUARD_MARGIN_MICRO).unwrap();
    assert_eq!((late.report.canary.labelled, late.report.canary.score, late.worse), (50, Some(0), Some(Worse::Score)));
    // Fifty labelled units came with seventy-five in all, and as many of the primary.
    assert_eq!((late.report.canary.units, late.report.primary.units), (75, 75));
    assert_eq!((late.report.canary.calls, late.report.primary.calls), (75, 75));
    let end = 2 * 75;
    let early: Vec<LiveCall> = calls.iter().filter(|call| call.completed_at < at(end)).cloned().collect();
    let looked = look_at_units(&window(), 1, &early, &live_units(&early), GUARD_MARGIN_MICRO);
    assert_eq!(looked, Some(late), "the same look was made when its last unit came");
    let short: Vec<LiveCall> = calls.iter().filter(|call| call.completed_at < at(end - 1)).cloned().collect();
    assert_eq!(look_at_units(&window(), 1, &short, &live_units(&short), GUARD_MARGIN_MICRO), None);
    assert_eq!(look_at_units(&window(), 21, &calls, &units, GUARD_MARGIN_MICRO), None);
    assert_eq!(look_at_units(&window(), 0, &calls, &units, GUARD_MARGIN_MICRO), None);
}

#[test]
fn a_difference_within_the_margin_and_a_handful_of_units_are_not_worse() {
    let side = |side, from: u64, count: u64, good: u64| {
        (0..count).map(move |number| call(side, from + 3 * number, Some(if number < good { ONE } else { 0 })))
    };
    let looked = |calls: &[LiveCall], margin| look_at_units(&window(), 1, calls, &live_units(calls), margin).unwrap();
    let calls: Vec<LiveCall> =
        side(RolloutSide::Canary, 2, 50, 30).chain(side(RolloutSide::Primary, 1, 50, 45)).collect();
    let found = looked(&calls, GUARD_MARGIN_MICRO);
    assert_eq!((found.worse, found.report.score.unwrap().mean), (Some(Worse::Score), -300_000));
    let high = found.report.score.unwrap().look_high;
    assert!(high < -20_000, "{high}");
    // The margin is accepted, so the bound must lie below it.
    assert_eq!(looked(&calls, high.unsigned_abs()).worse, None);
    assert_eq!(looked(&calls, high.unsigned_abs() - 1).worse, Some(Worse::Score));
    // The same difference beside twenty-nine units says nothing.
    let few: Vec<LiveCall> =
        side(RolloutSide::Canary, 2, 50, 10).chain(side(RolloutSide::Primary, 1, 29, 29)).collect();
    assert_eq!(looked(&few, GUARD_MARGIN_MICRO).worse, None);
}
