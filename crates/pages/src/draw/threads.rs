//! The threads of a loom as lines: turns along a line, forks leaving it downwards, children as short hairs.
//!
//! Later forks stand nearer to their parent. A fork leaves its parent to the right of every earlier one, so the way
//! down of an earlier fork passes on the left of all later ones, and no line crosses another. A stretch without an
//! event is drawn shorter, by the logarithm of its turns, so that a thread of 100,000 turns fits beside one of ten.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_service::cantrip::canon::{EntityId, TurnId};
use cantrip_service::cantrip::loom::{Origin, RunState, ThreadSummary};
use maud::{Markup, html};

use crate::fit::one_row;
use crate::limits::THREADS_DRAWN_MAX;
use crate::write::grouped;

const WIDTH: f64 = 1_180.0;
/// The place of the first and of the last turn.
const LEFT: f64 = 264.0;
const RIGHT: f64 = 1_062.0;
const ROW: f64 = 74.0;
const BELOW: f64 = 50.0;
/// A stretch of at most this number of turns is drawn in its full length.
const FULL_STRETCH: f64 = 50.0;
/// The least distance between two numbers of the axis.
const TICK_ROOM: f64 = 52.0;
const LABEL_CHARS: usize = 30;
const INDENT: f64 = 10.0;
const INDENTS_MAX: usize = 3;
const HAIRS_MAX: usize = 5;
/// The lengths of the hairs differ so that they read as several.
const HAIR_LENGTHS: [f64; HAIRS_MAX] = [12.0, 15.0, 18.0, 14.0, 17.0];
const HAIR_STEP: f64 = 6.0;

/// A thread that has a line of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) thread: &'a ThreadSummary,
    /// The number of threads above it that it branched off from.
    pub(crate) depth: usize,
}

/// Returns the threads that have a line of their own, in the order of the lines: each thread, then the threads that
/// branch off it, the latest branch first. A child has no line unless somebody forked it, or something below it.
pub(crate) fn rows(threads: &[ThreadSummary]) -> Vec<Row<'_>> {
    let by_entity: BTreeMap<EntityId, &ThreadSummary> = threads.iter().map(|one| (one.entity_id, one)).collect();
    let drawn = drawn_entities(threads, &by_entity);
    let mut branches: BTreeMap<EntityId, Vec<&ThreadSummary>> = BTreeMap::new();
    let mut roots = Vec::new();
    for thread in threads.iter().filter(|thread| drawn.contains(&thread.entity_id)) {
        match thread.parent.filter(|parent| by_entity.contains_key(parent)) {
            Some(parent) => branches.entry(parent).or_default().push(thread),
            None => roots.push(thread),
        }
    }
    // The end of the list is drawn next: the latest branch, and the first root.
    branches.values_mut().for_each(|all| all.sort_by_key(|branch| branch.parent_sequence));
    let mut next: Vec<Row<'_>> = roots.into_iter().rev().map(|thread| Row { thread, depth: 0 }).collect();
    let mut rows = Vec::new();
    while let Some(row) = next.pop() {
        rows.push(row);
        let below = branches.remove(&row.thread.entity_id).unwrap_or_default();
        next.extend(below.into_iter().map(|thread| Row { thread, depth: row.depth + 1 }));
    }
    rows
}

/// Returns the entities with a line of their own: all but children, and the children that lead to one of these.
fn drawn_entities(threads: &[ThreadSummary], by_entity: &BTreeMap<EntityId, &ThreadSummary>) -> BTreeSet<EntityId> {
    let mut drawn = BTreeSet::new();
    for thread in threads.iter().filter(|thread| !is_child(thread)) {
        let mut above = Some(thread);
        while let Some(one) = above {
            if !drawn.insert(one.entity_id) {
                break;
            }
            above = one.parent.and_then(|parent| by_entity.get(&parent).copied());
        }
    }
    drawn
}

pub(crate) fn is_child(thread: &ThreadSummary) -> bool {
    match thread.origin {
        Origin::Child { .. } => true,
        Origin::Root | Origin::Fork(_) => false,
    }
}

/// Returns the drawing of the first rows. The rows of the chosen leaves are marked. `says` is the line below the name
/// of a thread, `leads_to` its address.
pub(crate) fn threads(
    all: &[ThreadSummary],
    chosen: &[TurnId],
    says: impl Fn(&ThreadSummary) -> String,
    leads_to: impl Fn(&ThreadSummary) -> String,
) -> Markup {
    let mut rows = rows(all);
    rows.truncate(THREADS_DRAWN_MAX);
    let lines: BTreeMap<EntityId, f64> =
        rows.iter().zip(1_u32..).map(|(row, at)| (row.thread.entity_id, y(at))).collect();
    let hairs = hairs(all, &lines);
    let scale = Scale::of(&rows, &hairs);
    let height = rows.len() as f64 * ROW + BELOW;
    let bottom = at(height - 18.0);
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) width="100%" role="group" aria-label=(about(rows.len())) {
            @for (sequence, x) in scale.ticks() {
                path d=(format!("M{} 42V{bottom}", at(x))) stroke="var(--line)" stroke-dasharray="1 5" {}
                text x=(at(x)) y="30" font-size="10.5" fill="var(--ink-3)" text-anchor="middle" { (grouped(sequence)) }
            }
            @for row in &rows {
                @let thread = row.thread;
                @if let Some(y) = lines.get(&thread.entity_id) {
                    a href=(leads_to(thread)) {
                        (ground(*y, thread.leaf.is_some_and(|leaf| chosen.contains(&leaf))))
                        (label(row, *y, &says(thread)))
                        (line(thread, *y, thread.parent.and_then(|parent| lines.get(&parent)).copied(), &scale))
                        (end(thread, *y, &scale))
                    }
                    @for (sequence, count) in hairs.get(&thread.entity_id).into_iter().flatten() {
                        (hair(scale.place(*sequence), *y, *count))
                    }
                }
            }
        }
    }
}

fn about(rows: usize) -> String {
    if rows == 1 { "1 thread of this loom".to_owned() } else { format!("{rows} threads of this loom") }
}

fn y(row: u32) -> f64 {
    f64::from(row) * ROW
}

/// Returns a place as the text of an attribute.
fn at(place: f64) -> String {
    format!("{place:.1}")
}

/// Counts the children of each drawn thread by the turn that spawned them.
fn hairs(all: &[ThreadSummary], lines: &BTreeMap<EntityId, f64>) -> BTreeMap<EntityId, BTreeMap<u64, u64>> {
    let mut hairs: BTreeMap<EntityId, BTreeMap<u64, u64>> = BTreeMap::new();
    for thread in all.iter().filter(|thread| is_child(thread) && !lines.contains_key(&thread.entity_id)) {
        let (Some(parent), Some(sequence)) = (thread.parent, thread.parent_sequence) else { continue };
        if lines.contains_key(&parent) {
            *hairs.entry(parent).or_default().entry(sequence).or_default() += 1;
        }
    }
    hairs
}

/// The places of turns by their sequence numbers.
struct Scale {
    /// The turns at which something happens, with their places, in order.
    places: Vec<(u64, f64)>,
}

impl Scale {
    fn of(rows: &[Row<'_>], hairs: &BTreeMap<EntityId, BTreeMap<u64, u64>>) -> Self {
        let mut events: BTreeSet<u64> = hairs.values().flat_map(BTreeMap::keys).copied().collect();
        for Row { thread, .. } in rows {
            events.extend([thread.first, thread.last, thread.parent_sequence].into_iter().flatten());
        }
        let events: Vec<u64> = events.into_iter().collect();
        let lengths = events.windows(2).map(|pair| if let [a, b] = pair { stretch(b - a) } else { 0.0 });
        let ends: Vec<f64> = lengths
            .scan(0.0, |sum, length| {
                *sum += length;
                Some(*sum)
            })
            .collect();
        let whole = ends.last().copied().unwrap_or(1.0);
        let place = |end: f64| LEFT + end / whole * (RIGHT - LEFT);
        Self { places: events.into_iter().zip([0.0].into_iter().chain(ends).map(place)).collect() }
    }

    fn place(&self, sequence: u64) -> f64 {
        let after = self.places.partition_point(|(event, _)| *event <= sequence);
        let before = after.checked_sub(1).and_then(|before| self.places.get(before));
        match (before, self.places.get(after)) {
            (Some((from, left)), Some((to, right))) => {
                left + (sequence - from) as f64 / (to - from) as f64 * (right - left)
            }
            (Some((_, end)), None) => *end,
            (None, _) => LEFT,
        }
    }

    /// Returns the numbers of the axis with their places: the first turn, round numbers, the last turn.
    fn ticks(&self) -> Vec<(u64, f64)> {
        let (Some((first, _)), Some((last, end))) = (self.places.first(), self.places.last()) else {
            return Vec::new();
        };
        let step = round_step((last - first) / 7);
        let mut ticks = vec![(*first, self.place(*first))];
        let mut next = (first / step + 1) * step;
        while next < *last {
            let place = self.place(next);
            let room = ticks.last().is_none_or(|(_, before)| place - before >= TICK_ROOM);
            if room && end - place >= TICK_ROOM {
                ticks.push((next, place));
            }
            next += step;
        }
        if last > first {
            ticks.push((*last, *end));
        }
        ticks
    }
}

/// Returns the length of a stretch without events: its turns, and beyond a number of them the logarithm.
fn stretch(turns: u64) -> f64 {
    let turns = turns as f64;
    if turns <= FULL_STRETCH { turns } else { FULL_STRETCH * (1.0 + (turns / FULL_STRETCH).ln()) }
}

/// Returns the smallest of 1, 2, 5, 10, 20, 50 and so on that is not below this number.
fn round_step(least: u64) -> u64 {
    let mut decade = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let step = decade.saturating_mul(factor);
            if step >= least {
                return step;
            }
        }
        decade = decade.saturating_mul(10);
    }
}

/// The ground of a row: the room that a pointer can hit, coloured if the row is chosen.
fn ground(y: f64, is_chosen: bool) -> Markup {
    let (fill, opacity) = if is_chosen { ("var(--accent-soft)", ".55") } else { ("transparent", "1") };
    html! { rect x="8" y=(at(y - 28.0)) width="1164" height="58" rx="8" fill=(fill) opacity=(opacity) {} }
}

fn label(row: &Row<'_>, y: f64, says: &str) -> Markup {
    let x = at(24.0 + row.depth.saturating_sub(1).min(INDENTS_MAX) as f64 * INDENT);
    let intent = one_row(row.thread.intent.as_deref(), LABEL_CHARS);
    html! {
        text x=(x) y=(at(y - 3.0)) font-size="13.5" fill="var(--ink)" font-family="var(--serif)" {
            (intent)
        }
        text x=(x) y=(at(y + 14.0)) font-size="11" fill="var(--ink-3)" { (says) }
    }
}

/// The line of a thread: along its row, or down from its parent and then along its row.
fn line(thread: &ThreadSummary, y: f64, parent_y: Option<f64>, scale: &Scale) -> Markup {
    let end = end_place(thread, scale);
    let (Some(parent_y), Some(sequence)) = (parent_y, thread.parent_sequence) else {
        let from = thread.first.map_or(LEFT, |first| scale.place(first));
        return html! {
            path d=(format!("M{} {}H{}", at(from), at(y), at(end))) stroke="var(--ink-2)" stroke-width="2.2" {}
        };
    };
    let from = scale.place(sequence);
    let path = format!("M{} {}V{}q0 12 12 12H{}", at(from), at(parent_y), at(y - 12.0), at(end));
    // A child that somebody forked has a line too, and leaves its parent by a call, not by a fork.
    let dashes = is_child(thread).then_some("4 4");
    html! {
        path d=(path) fill="none" stroke="var(--ink-3)" stroke-width="1.6" stroke-dasharray=[dashes] {}
        circle cx=(at(from)) cy=(at(parent_y)) r="4" fill="var(--sheet)" stroke="var(--ink-2)" stroke-width="1.6" {}
    }
}

/// Returns the place of the last turn. A line that just left its parent is long enough to be seen.
fn end_place(thread: &ThreadSummary, scale: &Scale) -> f64 {
    let last = thread.last.map(|last| scale.place(last));
    let left = thread.parent_sequence.map(|sequence| scale.place(sequence) + 24.0);
    match (last, left) {
        (Some(last), Some(left)) => last.max(left),
        (Some(last), None) => last.max(LEFT + 12.0),
        (None, Some(left)) => left,
        (None, None) => LEFT + 12.0,
    }
}

/// The state of a thread at the end of its line: the shapes that states have everywhere.
fn end(thread: &ThreadSummary, y: f64, scale: &Scale) -> Markup {
    let x = end_place(thread, scale);
    let (cx, cy) = (at(x), at(y));
    match thread.state {
        RunState::Terminated => html! { circle cx=(cx) cy=(cy) r="5.5" fill="var(--ok)" {} },
        RunState::Running => html! {
            circle cx=(cx) cy=(cy) r="5" fill="var(--sheet)" stroke="var(--accent)" stroke-width="3" {}
        },
        RunState::Queued => html! {
            circle cx=(cx) cy=(cy) r="5" fill="var(--sheet)" stroke="var(--ink-3)" stroke-width="2"
                stroke-dasharray="2 2" {}
        },
        RunState::Waiting => {
            let path = format!("M{} {}v12m6-12v12", at(x - 1.0), at(y - 6.0));
            html! { path d=(path) stroke="var(--wait)" stroke-width="3.4" {} }
        }
        RunState::Failed => {
            let path = format!("M{} {}l10 10m0-10l-10 10", at(x - 5.0), at(y - 5.0));
            html! { path d=(path) stroke="var(--bad)" stroke-width="2.8" {} }
        }
        RunState::Truncated => {
            let path = format!("M{} {cy}h6m3 0h3m3 0h2", at(x + 3.0));
            html! { path d=(path) stroke="var(--warn)" stroke-width="3.4" {} }
        }
    }
}

/// The children of one turn: a hair for each, and their number beyond five.
fn hair(x: f64, y: f64, count: u64) -> Markup {
    let shown = usize::try_from(count).unwrap_or(usize::MAX).min(HAIRS_MAX);
    let hairs =
        HAIR_LENGTHS.iter().take(shown).zip(0_u32..).map(|(length, at)| (x + f64::from(at) * HAIR_STEP, *length));
    html! {
        @for (x, length) in hairs {
            path d=(format!("M{} {}v{length}", at(x), at(y))) stroke="var(--ink-3)" stroke-width="1.3" {}
            circle cx=(at(x)) cy=(at(y + length + 1.0)) r="1.9" fill="var(--ink-3)" {}
        }
        @if count > HAIRS_MAX as u64 {
            text x=(at(x + HAIRS_MAX as f64 * HAIR_STEP + 4.0)) y=(at(y + 20.0)) font-size="10" fill="var(--ink-3)" {
                (grouped(count))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cantrip_service::cantrip::canon::{RunId, Timestamp};
    use cantrip_service::cantrip::loom::{CallId, Environment, Fork, Spawn};

    use super::*;

    fn entity(number: u8) -> EntityId {
        EntityId::from_parts(Timestamp::EPOCH, [number; 10])
    }

    fn turn(number: u8) -> TurnId {
        TurnId::from_parts(Timestamp::EPOCH, [number; 10])
    }

    fn root(number: u8, last: u64) -> ThreadSummary {
        ThreadSummary {
            entity_id: entity(number),
            run_id: RunId::from_parts(Timestamp::EPOCH, [number; 10]),
            origin: Origin::Root,
            parent: None,
            parent_sequence: None,
            fork: None,
            call_id: None,
            first: Some(1),
            last: Some(last),
            leaf: Some(turn(number)),
            state: RunState::Terminated,
            reason: None,
            intent: Some(format!("thread {number}")),
            crystal: None,
            own_cost: None,
            cost: None,
            turns: last,
            at: Timestamp::EPOCH,
        }
    }

    fn fork(number: u8, parent: u8, sequence: u64, last: u64) -> ThreadSummary {
        let fork = Fork { turn: turn(parent), environment: Environment::Fresh };
        ThreadSummary {
            origin: Origin::Fork(fork),
            parent: Some(entity(parent)),
            parent_sequence: Some(sequence),
            fork: Some(fork),
            first: Some(sequence + 1),
            ..root(number, last)
        }
    }

    fn child(number: u8, parent: u8, sequence: u64) -> ThreadSummary {
        let call_id = CallId::of_turn(turn(parent), 1);
        ThreadSummary {
            origin: Origin::Child { parent: turn(parent), spawned_by: Spawn { call_id, index: 0 } },
            parent: Some(entity(parent)),
            parent_sequence: Some(sequence),
            call_id: Some(call_id),
            ..root(number, 3)
        }
    }

    fn drawing(all: &[ThreadSummary]) -> String {
        threads(all, &[], |_| String::new(), |thread| format!("/{}", thread.run_id)).into_string()
    }

    #[test]
    fn later_forks_stand_nearer_to_their_parent_and_children_have_no_line() {
        let all = [root(1, 312), fork(2, 1, 54, 142), fork(3, 1, 131, 274), fork(4, 3, 190, 251), child(5, 1, 60)];
        let numbers: Vec<(EntityId, usize)> = rows(&all).iter().map(|row| (row.thread.entity_id, row.depth)).collect();
        assert_eq!(numbers, [(entity(1), 0), (entity(3), 1), (entity(4), 2), (entity(2), 1)]);
    }

    #[test]
    fn no_line_crosses_another() {
        let mut all = vec![root(1, 400)];
        for number in 2..40_u8 {
            let parent = 1 + number % (number / 2);
            let least = all.iter().find(|one| one.entity_id == entity(parent)).and_then(|one| one.first).unwrap_or(1);
            let sequence = least + u64::from(number).pow(2) % 37;
            all.push(fork(number, parent, sequence, sequence + 20));
        }
        let rows = rows(&all);
        assert_eq!(rows.len(), all.len());
        let row_of = |wanted| rows.iter().position(|row| row.thread.entity_id == wanted).unwrap();
        for (at, Row { thread, .. }) in rows.iter().enumerate() {
            let (Some(parent), Some(sequence)) = (thread.parent, thread.parent_sequence) else { continue };
            // The way down of a fork passes every row between its parent and itself before that row begins.
            for passed in &rows[row_of(parent) + 1..at] {
                assert!(passed.thread.parent_sequence.unwrap() >= sequence, "{:?}", passed.thread.intent);
            }
        }
    }

    #[test]
    fn a_child_that_was_forked_has_a_line_that_leads_to_the_fork() {
        let all = [root(1, 9), child(2, 1, 4), fork(3, 2, 5, 8)];
        let drawn: Vec<EntityId> = rows(&all).iter().map(|row| row.thread.entity_id).collect();
        assert_eq!(drawn, [entity(1), entity(2), entity(3)]);
        assert!(drawing(&all).contains("stroke-dasharray=\"4 4\""));
    }

    #[test]
    fn a_thread_whose_parent_is_on_another_page_begins_a_line() {
        let all = [fork(3, 1, 5, 8)];
        assert_eq!(rows(&all).len(), 1);
        assert!(drawing(&all).contains(" 74.0H1062.0"), "{}", drawing(&all));
    }

    #[test]
    fn a_hundred_thousand_turns_fit_beside_ten() {
        let all = [root(1, 100_000), fork(2, 1, 99_990, 100_000), root(3, 10)];
        let scale = Scale::of(&rows(&all), &BTreeMap::new());
        assert_eq!((scale.place(1), scale.place(100_000)), (LEFT, RIGHT));
        assert!(scale.place(10) - LEFT > 10.0, "{}", scale.place(10));
        assert!(RIGHT - scale.place(99_990) > 10.0, "{}", scale.place(99_990));
        let ticks = scale.ticks();
        assert_eq!((ticks.first().unwrap().0, ticks.last().unwrap().0), (1, 100_000));
        assert!(ticks.windows(2).all(|pair| pair[1].1 - pair[0].1 >= TICK_ROOM), "{ticks:?}");
    }

    #[test]
    fn children_are_counted_beyond_five() {
        let mut all = vec![root(1, 300)];
        all.extend((2..20).map(|number| child(number, 1, 280)));
        let drawn = drawing(&all);
        assert_eq!(drawn.matches("r=\"1.9\"").count(), 5);
        assert!(drawn.contains(">18</text>"), "{drawn}");
    }

    #[test]
    fn the_names_of_threads_are_text() {
        let hostile = ThreadSummary { intent: Some("</text><script>".to_owned()), ..root(1, 2) };
        assert!(drawing(&[hostile]).contains("&lt;/text&gt;&lt;script&gt;"));
    }
}
