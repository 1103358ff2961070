//! Tests of money, ids and times: accepted input, refused input, and their laws.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::limits::MONEY_MICROS_MAX;
use cantrip_canon::{
    CastId, Clock, Currency, Id, IdFault, IdSource, Instant, Kind, ManualClock, Money, MoneyFault, RunId, Timestamp,
    TimestampFault, TurnId, json, kinds,
};
use proptest::prelude::*;
use serde_json::json;

const USD: Currency = Currency::USD;

fn usd(micros: i64) -> Money {
    Money::new(micros, USD).unwrap()
}

fn sat(micros: i64) -> Money {
    Money::new(micros, "SAT".parse().unwrap()).unwrap()
}

#[test]
fn an_amount_is_written_with_two_to_six_decimals() {
    for (micros, text) in [
        (0, "0.00 USD"),
        (1, "0.000001 USD"),
        (500_000, "0.50 USD"),
        (1_290, "0.00129 USD"),
        (12_345_678_900, "12345.6789 USD"),
        (MONEY_MICROS_MAX, "9007199254.740991 USD"),
    ] {
        assert_eq!(usd(micros).to_string(), text);
        assert_eq!(text.parse::<Money>().unwrap(), usd(micros));
    }
    assert_eq!("1 USD".parse::<Money>().unwrap(), usd(1_000_000));
    assert_eq!("21 SATOSHIS".parse::<Money>().unwrap().currency().to_string(), "SATOSHIS");
}

#[test]
fn what_is_not_an_amount_is_refused() {
    for text in [
        "",
        " ",
        "USD",
        "1USD",
        " 1 USD",
        "-1 USD",
        "+1 USD",
        "1,5 USD",
        ".5 USD",
        "1. USD",
        "1.2.3 USD",
        "1e3 USD",
        "0x1 USD",
        "1.0000001 USD",
        "١ USD",
        "1\tUSD",
        "NaN USD",
        "9999999999999999999 USD",
    ] {
        assert!(matches!(text.parse::<Money>(), Err(MoneyFault::Form(_))), "{text}");
    }
    for text in ["1", "0.50"] {
        let fault = text.parse::<Money>().expect_err("it has no currency");
        assert_eq!(fault, MoneyFault::NoCurrency(text.to_owned()));
        assert_eq!(fault.to_string(), format!("{text} has no currency: write \"{text} USD\", in quotation marks"));
    }
    for text in ["1  USD", "1 USD ", "1 usd", "1 US", "1 USDUSDUSD", "1 U$D", "1 USD EUR", "1 ÜSD", "1 US1"] {
        assert!(matches!(text.parse::<Money>(), Err(MoneyFault::Currency(_))), "{text}");
    }
    for text in ["9007199254.740992 USD", "9007199255 USD", "999999999999999999 USD"] {
        assert!(matches!(text.parse::<Money>(), Err(MoneyFault::Range(_))), "{text}");
    }
}

#[test]
fn json_gives_no_amount_that_could_not_be_made_otherwise() {
    assert_eq!(json::to_value(&usd(5)).unwrap(), json!({"micros": 5, "currency": "USD"}));
    assert_eq!(serde_json::from_value::<Money>(json!({"micros": 5, "currency": "USD"})).unwrap(), usd(5));
    for refused in [
        json!({"micros": -1, "currency": "USD"}),
        json!({"micros": MONEY_MICROS_MAX + 1, "currency": "USD"}),
        json!({"micros": u64::MAX, "currency": "USD"}),
        json!({"micros": 0.5, "currency": "USD"}),
        json!({"micros": "5", "currency": "USD"}),
        json!({"micros": 5, "currency": "usd"}),
        json!({"micros": 5}),
        json!({"currency": "USD"}),
        json!({"micros": 5, "currency": "USD", "rate": 1}),
        json!("0.50 USD"),
    ] {
        assert!(serde_json::from_value::<Money>(refused.clone()).is_err(), "{refused}");
    }
}

#[test]
fn amounts_of_two_currencies_never_meet() {
    let mixed = MoneyFault::Mixed { left: USD, right: "SAT".parse().unwrap() };
    assert_eq!(usd(1).plus(sat(1)), Err(mixed.clone()));
    assert_eq!(usd(1).minus(sat(1)), Err(mixed.clone()));
    assert_eq!(usd(1).excess_over(sat(1)), Err(mixed));
}

proptest! {
    #[test]
    fn an_amount_reads_back_as_it_was_written(micros in 0..=MONEY_MICROS_MAX, currency in "[A-Z]{3,8}") {
        let money = Money::new(micros, currency.parse().unwrap()).unwrap();
        prop_assert_eq!(money.to_string().parse::<Money>().unwrap(), money);
        let value = json::to_value(&money).unwrap();
        prop_assert_eq!(serde_json::from_value::<Money>(value).unwrap(), money);
    }

    #[test]
    fn arithmetic_is_exact_or_refused(a in 0..=MONEY_MICROS_MAX, b in 0..=MONEY_MICROS_MAX, count: u64, few in 0_u64..1000) {
        let within = |micros: i128| (0..=i128::from(MONEY_MICROS_MAX)).contains(&micros).then_some(micros);
        let micros = |money: Result<Money, MoneyFault>| money.ok().map(|money| i128::from(money.micros()));
        let (wide_a, wide_b) = (i128::from(a), i128::from(b));
        prop_assert_eq!(micros(usd(a).plus(usd(b))), within(wide_a + wide_b));
        prop_assert_eq!(micros(usd(a).minus(usd(b))), within(wide_a - wide_b));
        for count in [count, few] {
            prop_assert_eq!(micros(usd(a).times(count)), within(wide_a * i128::from(count)));
        }
        prop_assert_eq!(usd(a).excess_over(usd(b)).unwrap(), a - b);
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,40}", near in "[0-9]{1,20}(\\.[0-9]{0,8})? ?[A-Za-z]{0,9}") {
        for text in [text, near] {
            let _either_way = (text.parse::<Money>(), text.parse::<RunId>(), text.parse::<Timestamp>());
        }
    }
}

fn ms(millis: i64) -> Timestamp {
    Timestamp::from_unix_millis(millis).unwrap()
}

fn reads_back<K: Kind>(source: &IdSource) {
    let id: Id<K> = source.next(ms(1_771_466_400_000));
    let text = id.to_string();
    assert!(text.starts_with(K::PREFIX));
    assert_eq!(text.parse::<Id<K>>().unwrap(), id);
    assert_eq!(serde_json::from_value::<Id<K>>(json::to_value(&id).unwrap()).unwrap(), id);
    assert_eq!(id.made_at(), ms(1_771_466_400_000));
}

#[test]
fn ids_of_every_kind_read_back_as_they_were_written() {
    let source = IdSource::seeded(1);
    reads_back::<kinds::Loom>(&source);
    reads_back::<kinds::Run>(&source);
    reads_back::<kinds::Entity>(&source);
    reads_back::<kinds::Cast>(&source);
    reads_back::<kinds::Turn>(&source);
    reads_back::<kinds::Fold>(&source);
    reads_back::<kinds::Predict>(&source);
    reads_back::<kinds::Authorization>(&source);
    reads_back::<kinds::Approval>(&source);
    reads_back::<kinds::Decision>(&source);
    reads_back::<kinds::Audit>(&source);
    reads_back::<kinds::Job>(&source);
}

#[test]
fn what_is_not_an_id_of_the_kind_is_refused() {
    for text in [
        "cast_06cyf9k2vtd3m8x1q7hbz4n5rw",
        "turns_06cyf9k2vtd3m8x1q7hbz4n5rw",
        "TURN_06cyf9k2vtd3m8x1q7hbz4n5rw",
        "turn",
        "",
    ] {
        assert!(matches!(text.parse::<TurnId>(), Err(IdFault::Prefix { .. })), "{text}");
    }
    for digits in [
        "",
        "06cyf9k2vtd3m8x1q7hbz4n5r",
        "06cyf9k2vtd3m8x1q7hbz4n5rwx",
        "06CYF9K2VTD3M8X1Q7HBZ4N5RW",
        "06cyf9k2vtd3m8x1q7hbz4n5rl",
        "06cyf9k2vtd3m8x1q7hbz4n5ru",
        "86cyf9k2vtd3m8x1q7hbz4n5rw",
        "06cyf9k2vtd3m8x1q7hbz4n5é",
        "06cyf9k2vtd3m8x1q7hbz4n5 w",
    ] {
        let text = format!("turn_{digits}");
        assert!(matches!(text.parse::<TurnId>(), Err(IdFault::Form { .. })), "{text}");
        assert!(serde_json::from_value::<TurnId>(json!(text)).is_err(), "{text}");
    }
}

#[test]
fn the_same_parts_make_the_same_id_and_texts_sort_as_ids_do() {
    let at = ms(1_000);
    assert_eq!(RunId::from_parts(at, [7; 10]), RunId::from_parts(at, [7; 10]));
    assert_eq!(RunId::from_parts(at, [7; 10]).to_string(), "run_00000000z80w3ge1r70w3ge1r7");

    let mut random = common::Random::new(3);
    let mut ids: Vec<RunId> = (0..1_000)
        .map(|_| {
            let mut chance = [0; 10];
            chance[..8].copy_from_slice(&random.bits().to_le_bytes());
            RunId::from_parts(ms(random.below(1 << 44) as i64), chance)
        })
        .collect();
    ids.sort();
    assert!(ids.is_sorted_by_key(RunId::to_string));
}

#[test]
fn ids_increase_within_one_millisecond_and_behind_a_clock_set_back() {
    let source = IdSource::seeded(7);
    let times = [5_000, 5_000, 5_000, 4_000, 0, 5_000, 5_001, 4_999, 9_000];
    let ids: Vec<CastId> = times.iter().cycle().take(10_000).map(|millis| source.next(ms(*millis))).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(ids[0].made_at(), ms(5_000));
}

#[test]
fn ids_that_many_threads_make_are_all_different() {
    let source = Arc::new(IdSource::seeded(11));
    let made: Vec<Vec<TurnId>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| (0..2_000).map(|_| source.next(ms(1_000))).collect())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|of_one| of_one.is_sorted()));
    let all: BTreeSet<TurnId> = made.into_iter().flatten().collect();
    assert_eq!(all.len(), 16_000);
}

#[test]
fn an_id_from_beyond_the_last_year_is_dated_to_its_end() {
    let last: RunId = "run_7zzzzzzzzzzzzzzzzzzzzzzzzz".parse().unwrap();
    assert_eq!(last.made_at().to_string(), "9999-12-31T23:59:59.999Z");
    assert_eq!(last.to_string(), "run_7zzzzzzzzzzzzzzzzzzzzzzzzz");
}

#[test]
fn a_time_that_is_not_of_the_one_form_is_refused() {
    for text in [
        "",
        "2026-02-19",
        "2026-02-19T02:00:00Z",
        "2026-02-19T02:00:00.0Z",
        "2026-02-19T02:00:00.000000Z",
        "2026-02-19T02:00:00.000z",
        "2026-02-19t02:00:00.000Z",
        "2026-02-19 02:00:00.000Z",
        "2026-02-19T02:00:00.000+00:00",
        "2026-02-19T02:00:00.000",
        "+026-02-19T02:00:00.000Z",
        "2026-02-19T02:00:00,000Z",
        " 2026-02-19T02:00:00.000",
        "٢٠٢٦-02-19T02:00:00.000Z",
    ] {
        assert!(matches!(text.parse::<Timestamp>(), Err(TimestampFault::Form(_))), "{text}");
    }
}

#[test]
fn a_day_or_time_that_does_not_exist_is_refused() {
    for text in [
        "2026-02-29T00:00:00.000Z",
        "2100-02-29T00:00:00.000Z",
        "2026-13-01T00:00:00.000Z",
        "2026-00-01T00:00:00.000Z",
        "2026-04-31T00:00:00.000Z",
        "2026-01-00T00:00:00.000Z",
        "2026-01-01T24:00:00.000Z",
        "2026-01-01T23:60:00.000Z",
        "2016-12-31T23:59:60.000Z",
        "2026-01-01T23:59:61.000Z",
    ] {
        assert!(matches!(text.parse::<Timestamp>(), Err(TimestampFault::Unreal(_))), "{text}");
    }
    assert!("2024-02-29T23:59:59.999Z".parse::<Timestamp>().is_ok());
    for text in ["1969-12-31T23:59:59.999Z", "0000-01-01T00:00:00.000Z"] {
        assert!(matches!(text.parse::<Timestamp>(), Err(TimestampFault::Range(_))), "{text}");
    }
}

#[test]
fn time_ends_where_four_digits_do() {
    let last: Timestamp = "9999-12-31T23:59:59.999Z".parse().unwrap();
    assert_eq!(last.after(Duration::from_millis(1)), last);
    assert_eq!(Timestamp::EPOCH.after(Duration::MAX), last);
    for beyond in [last.unix_millis() + 1, -1, i64::MIN, i64::MAX] {
        assert_eq!(Timestamp::from_unix_millis(beyond), Err(TimestampFault::Range(beyond)));
    }
}

proptest! {
    #[test]
    fn a_time_reads_back_as_it_was_written_and_sorts_as_its_text(
        one in 0_i64..=253_402_300_799_999,
        other in 0_i64..=253_402_300_799_999,
    ) {
        let (one, other) = (ms(one), ms(other));
        prop_assert_eq!(one.to_string().parse::<Timestamp>().unwrap(), one);
        let value = json::to_value(&one).unwrap();
        prop_assert_eq!(serde_json::from_value::<Timestamp>(value).unwrap(), one);
        prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
        prop_assert_eq!(&one.to_string()[..10], one.day());
    }
}

#[test]
fn a_wall_clock_that_is_set_back_does_not_move_the_monotonic_one() {
    let clock = ManualClock::starting(ms(10_000));
    let before = clock.now();
    clock.advance(Duration::from_millis(250));
    clock.set_wall(ms(3));
    let after = clock.now();
    assert_eq!(after.monotonic.since(before.monotonic), Duration::from_millis(250));
    assert_eq!(before.monotonic.since(after.monotonic), Duration::ZERO);
    assert_eq!(after.wall, ms(3));
    assert_eq!(Instant::from_origin(Duration::MAX).after(Duration::MAX), Instant::from_origin(Duration::MAX));
}

#[test]
fn every_bound_is_listed_with_its_reason() {
    let listed = cantrip_canon::limits::ALL;
    assert!(listed.iter().any(|limit| limit.name == "JSON_DEPTH_MAX" && limit.value == 128));
    assert!(listed.iter().all(|limit| !limit.doc.is_empty()));
}
