//! Windows, buckets and sums: the arithmetic that every store shares, and its limits.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_canon::{Money, TurnId};
use cantrip_loom::limits::{PATH_BUCKETS_MAX, SUMMARY_TEXT_CHARS, WINDOW_TURNS_MAX};
use cantrip_loom::{
    CostTotal, Journal, MemoryLoom, Overview, PathBucket, RunDigest, Seq, WindowPlace, bucket_width, summary_text,
};
use cantrip_loom_suite::LoomWriter;
use cantrip_reply::{ReplyType, codes};
use futures_util::TryStreamExt;
use proptest::prelude::*;
use serde_json::json;

fn money(text: &str) -> Option<Money> {
    Some(text.parse().expect("an amount"))
}

#[test]
fn costs_add_up_and_what_cannot_be_added_is_counted() {
    let mut spent = CostTotal::default();
    assert_eq!((spent.cost(), spent.complete_cost()), (None, None));
    for cost in [money("0 USD"), money("1 EUR"), money("0 USD"), money("0.5 EUR")] {
        spent.add(cost);
    }
    assert_eq!(spent.complete_cost(), money("1.5 EUR"), "nothing fits every currency");
    spent.add(money("1 USD"));
    spent.add(None);
    spent.add(money("9007199254.740991 EUR"));
    assert_eq!((spent.cost(), spent.uncosted(), spent.complete_cost()), (money("1.5 EUR"), 3, None));
    let mut all = CostTotal::new(money("1 EUR"), 1);
    all.add_all(&spent);
    assert_eq!((all.cost(), all.uncosted()), (money("2.5 EUR"), 4));
}

#[test]
fn a_text_is_cut_at_a_character_and_has_no_nul() {
    assert_eq!(summary_text("short"), "short");
    assert_eq!(summary_text("a\0b"), "a\u{fffd}b");
    let cut = summary_text(&"é".repeat(SUMMARY_TEXT_CHARS + 1));
    assert_eq!(cut, "é".repeat(SUMMARY_TEXT_CHARS));
}

fn mark(sequence: u64, worst: ReplyType) -> PathBucket {
    let turn_id = TurnId::from_parts(cantrip_loom_suite::at(sequence), [7; 10]);
    PathBucket { first: sequence, last: sequence, turn_id, worst, cost_micros: 1, forks: 0, children: 1, folds: 0 }
}

proptest! {
    #[test]
    fn a_range_is_within_the_path_and_not_longer_than_asked(
        last in 1_u64..400,
        at in 0_u64..500,
        most in 0_usize..300,
    ) {
        let length = most.clamp(1, WINDOW_TURNS_MAX) as u64;
        let bounds = |place: WindowPlace| place.range(last, most).map(|range| (*range.start(), *range.end()));
        for place in [WindowPlace::End, WindowPlace::Around(at), WindowPlace::After(at), WindowPlace::Before(at)] {
            if let Some((first, end)) = bounds(place) {
                prop_assert!(1 <= first && first <= end && end <= last, "{place:?}");
                prop_assert!(end - first < length, "{place:?}");
            }
        }
        let (first, end) = bounds(WindowPlace::Around(at)).unwrap();
        prop_assert!((first..=end).contains(&at.clamp(1, last)));
        prop_assert_eq!(end + 1 - first, length.min(last));
        prop_assert_eq!(bounds(WindowPlace::End).unwrap(), (last.saturating_sub(length - 1).max(1), last));
        prop_assert_eq!(bounds(WindowPlace::After(at)).is_none(), at >= last);
        prop_assert_eq!(bounds(WindowPlace::Before(at)).is_none(), at <= 1);
    }

    #[test]
    fn buckets_join_without_a_gap_and_full_ones_stay(turns in 1_u64..2_000, more in 0_u64..2_000, most in 0_usize..400) {
        let width = bucket_width(turns, most);
        let marks: Vec<PathBucket> = (1..=turns + more).map(|n| mark(n, ReplyType::ALL[n as usize % 4])).collect();
        let joined = PathBucket::join(marks[..turns as usize].to_vec(), width);
        prop_assert!(joined.len() <= most.clamp(1, PATH_BUCKETS_MAX));
        prop_assert_eq!(joined.iter().map(|bucket| bucket.cost_micros).sum::<i64>(), turns as i64);
        let mut next = 1;
        for bucket in &joined {
            prop_assert_eq!(bucket.first, next);
            prop_assert_eq!(u64::from(bucket.children), bucket.last + 1 - bucket.first);
            next = bucket.last + 1;
            let turns = &marks[bucket.first as usize - 1..bucket.last as usize];
            let worst = turns.iter().max_by_key(|one| (one.worst, u64::MAX - one.first));
            prop_assert_eq!(Some((bucket.worst, bucket.turn_id)), worst.map(|one| (one.worst, one.turn_id)));
        }
        prop_assert_eq!(next, turns + 1);
        let later = PathBucket::join(marks, width);
        let full = joined.len() - usize::from(joined.last().is_some_and(|bucket| bucket.last - bucket.first + 1 < width));
        prop_assert_eq!(&later[..full], &joined[..full]);
    }
}

#[tokio::test]
async fn a_window_and_a_spine_are_bounded_however_long_the_thread_is() {
    let store = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&store);
    let mut episode = weaver.cast("count").await;
    let turns = weaver.plain_turns(&mut episode, 500).await;
    let leaf = turns[499];
    for place in [WindowPlace::End, WindowPlace::Around(250), WindowPlace::After(10), WindowPlace::Before(400)] {
        let window = store.window(leaf, place, usize::MAX).await.unwrap();
        assert_eq!((window.turns.len(), window.last), (WINDOW_TURNS_MAX, 500), "{place:?}");
    }
    let marks = store.path_buckets(leaf, usize::MAX).await.unwrap();
    assert!(marks.len() <= PATH_BUCKETS_MAX && marks.len() > PATH_BUCKETS_MAX / 2, "{}", marks.len());
    assert_eq!((marks[0].first, marks.last().unwrap().last), (1, 500));
}

#[tokio::test]
async fn a_fold_that_is_written_and_read_back_after_every_record_is_the_same() {
    let store = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&store);
    let mut episode = weaver.cast("count").await;
    weaver.paid(&mut episode, "read", codes::NOT_AUTHORIZED.any(), 30).await;
    weaver.plain(&mut episode).await;
    weaver.done(&mut episode, json!({"sum": 3})).await;
    let records: Vec<_> = store.read(episode.run, Seq::START).try_collect().await.unwrap();
    let (mut whole, mut stored) = (RunDigest::default(), RunDigest::default());
    for record in records {
        let (event, opening) = (record.event().unwrap(), record.opening().unwrap());
        let text = serde_json::to_string(&stored).unwrap();
        stored = serde_json::from_str(&text).unwrap();
        let closed = whole.apply(&event, opening.as_ref(), &NoBodies);
        assert_eq!(stored.apply(&event, opening.as_ref(), &NoBodies), closed);
        assert_eq!(stored, whole);
    }
    assert_eq!(
        (whole.turns, whole.own_cost(), whole.answer.as_deref()),
        (3, money("0.00003 USD"), Some(r#"{"sum":3}"#))
    );
    assert!(whole.gates.contains("read") && whole.codes.contains(codes::NOT_AUTHORIZED.as_str()));
}

/// The records of these tests name no body.
struct NoBodies;

impl cantrip_loom::Bodies for NoBodies {
    fn body(&self, hash: &cantrip_canon::Hash) -> Result<std::sync::Arc<[u8]>, cantrip_loom::Error> {
        Err(cantrip_loom::Error::BodyAltered(*hash))
    }
}
