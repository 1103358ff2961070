//! What does turning events into upserts cost?
//!
//! Two floors, measured in the same run: `push_str` only appends the text of every delta to a `String`, which no
//! processor can beat; `recount` is the plain way to write one (see its module), which the shared segments and the
//! running count must beat.

mod events;
mod recount;

use std::time::Duration;

use cantrip_canon::{Instant, Now, Timestamp};
use cantrip_stream::{Emission, Options, Payload, Processor, StreamEvent};

use self::recount::Recount;
use crate::measure::{ROUNDS, Timing, race, time_measured};

/// Processes all events at one instant: no timer fires, and only the work per event is measured. Emissions are dropped
/// as they come, as by a viewer that has drawn them.
fn processed(events: &[StreamEvent]) -> usize {
    let mut processor = Processor::new(Options::default());
    let (mut out, mut count) = (Vec::new(), 0);
    for event in events {
        processor.process(event, at(0), &mut out).expect("within every limit");
        count += out.len();
        out.clear();
    }
    count
}

/// The clock moves 40 ms with every event of each turn, and the caller reads the next deadline after every event.
fn processed_in_time(events: &[StreamEvent], turns: usize) -> usize {
    let mut processor = Processor::new(Options::default());
    let mut out = Vec::new();
    let mut count = 0;
    for (index, event) in events.iter().enumerate() {
        let now = at(index as u64 * 40_000 / turns as u64);
        if processor.next_deadline().is_some_and(|deadline| deadline <= now.monotonic) {
            processor.tick(now, &mut out);
        }
        processor.process(event, now, &mut out).expect("within every limit");
        count += out.len();
        out.clear();
    }
    count
}

fn at(micros: u64) -> Now {
    let since_start = Duration::from_micros(micros);
    Now { monotonic: Instant::from_origin(since_start), wall: Timestamp::EPOCH.after(since_start) }
}

fn recounted(events: &[StreamEvent]) -> usize {
    let mut recount = Recount::default();
    let (mut out, mut count) = (Vec::new(), 0);
    for event in events {
        recount.process(event, &mut out);
        count += out.len();
        out.clear();
    }
    count
}

fn pushed(events: &[StreamEvent]) -> usize {
    let mut text = String::new();
    for event in events {
        if let Payload::ItemDelta(delta) = &event.payload {
            text.push_str(&delta.delta_content);
        }
    }
    text.len()
}

fn upserts(events: &[StreamEvent]) -> usize {
    let mut processor = Processor::new(Options::default());
    let mut out = Vec::new();
    for event in events {
        processor.process(event, at(0), &mut out).expect("within every limit");
    }
    out.iter().filter(|emission| matches!(emission, Emission::Upsert(_))).count()
}

fn row(what: &str, events: usize, timing: &Timing, beside: &str) {
    println!("| {what} | {events} | {} | {:.2} | {beside} |", timing.render(), timing.millions_a_second(events));
}

pub(crate) fn run() {
    let time = time_measured();
    println!("## stream\n\nMedian of {ROUNDS} rounds (fastest to slowest), contenders in turns, {time}.\n");
    println!("| what | events | time | million events/s | ratios |\n| --- | --- | --- | --- | --- |");

    let sizes = [100_000, 200_000, 400_000];
    let lists = sizes.map(events::one_item);
    let [a, b, c, floor_a, floor_b, floor_c] = race([
        &|| processed(&lists[0]),
        &|| processed(&lists[1]),
        &|| processed(&lists[2]),
        &|| pushed(&lists[0]),
        &|| pushed(&lists[1]),
        &|| pushed(&lists[2]),
    ]);
    let rows = [(&a, &floor_a, None), (&b, &floor_b, Some(&a)), (&c, &floor_c, Some(&b))];
    for ((deltas, list), (own, floor, half)) in sizes.iter().zip(&lists).zip(rows) {
        let mut beside = format!("{} upserts; {:.1} x push_str", upserts(list), own.over(floor));
        if let Some(half) = half {
            beside += &format!("; {:.2} x half the deltas", own.over(half));
        }
        row(&format!("one item, {deltas} one-word deltas"), list.len(), own, &beside);
    }

    let (half, whole) = (events::one_item(5_000), events::one_item(10_000));
    let [a, b, recount_a, recount_b] =
        race([&|| processed(&half), &|| processed(&whole), &|| recounted(&half), &|| recounted(&whole)]);
    row(
        "one item, 5000 one-word deltas",
        half.len(),
        &a,
        &format!("recount takes {:.0} x as long", recount_a.over(&a)),
    );
    let beside = format!(
        "recount takes {:.0} x as long; {:.2} x half the deltas, recount {:.2} x",
        recount_b.over(&b),
        b.over(&a),
        recount_b.over(&recount_a)
    );
    row("one item, 10000 one-word deltas", whole.len(), &b, &beside);

    let events = events::short_items(200_000, 200);
    against_both("200000 deltas in items of 200", &events);
    let events = events::turns(20_000);
    against_both("20000 turns: a call, a message of four deltas", &events);

    let turns = 256;
    let events = events::interleaved(turns, 400);
    let [own, floor, still] =
        race([&|| processed_in_time(&events, turns), &|| pushed(&events), &|| processed(&events)]);
    let beside =
        format!("{:.1} x push_str; {:.2} x the same with the clock standing still", own.over(&floor), own.over(&still));
    row("256 turns at once, a delta each 40 ms, timers on", events.len(), &own, &beside);
}

fn against_both(what: &str, events: &[StreamEvent]) {
    let [own, floor, recount] = race([&|| processed(events), &|| pushed(events), &|| recounted(events)]);
    let beside = format!("{:.1} x push_str; recount takes {:.2} x as long", own.over(&floor), recount.over(&own));
    row(what, events.len(), &own, &beside);
}
