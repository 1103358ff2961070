//! State: a shape, a word and a colour. Never a colour alone.

use cantrip_service::cantrip::loom::{ParkReason, RunState, TruncationReason};
use cantrip_service::cantrip::reply::ReplyType;
use cantrip_view::Doing;
use maud::{Markup, html};

use super::{shortened, visible_text};

/// The length of the name of a gate or a provider in a mark.
const DOING_CHARS: usize = 60;

/// The shapes. Each differs from the others without its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Disc,
    Ring,
    Bars,
    Dashes,
    Cross,
    Dots,
    Triangle,
    Slashed,
    HalfDisc,
}

fn shape(shape: Shape) -> Markup {
    html! {
        svg viewBox="0 0 12 12" aria-hidden="true" {
            @match shape {
                Shape::Disc => { circle cx="6" cy="6" r="5" fill="currentColor" {} },
                Shape::Ring => { circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="2.5" {} },
                Shape::Bars => { path d="M2 1h3v10H2zM7 1h3v10H7z" fill="currentColor" {} },
                Shape::Dashes => { path d="M1 6h4M7 6h1M10 6h1" stroke="currentColor" stroke-width="2.4" {} },
                Shape::Cross => { path d="M2 2l8 8M10 2l-8 8" stroke="currentColor" stroke-width="2.6" {} },
                Shape::Dots => {
                    circle cx="6" cy="6" r="4.4" fill="none" stroke="currentColor" stroke-width="1.8"
                        stroke-dasharray="1.6 1.9" {}
                },
                Shape::Triangle => { path d="M6 .8 11.5 11H.5z" fill="currentColor" {} },
                Shape::Slashed => {
                    circle cx="6" cy="6" r="4.6" fill="none" stroke="currentColor" stroke-width="1.8" {}
                    path d="M3 9l6-6" stroke="currentColor" stroke-width="1.8" {}
                },
                Shape::HalfDisc => {
                    circle cx="6" cy="6" r="4.6" fill="none" stroke="currentColor" stroke-width="1.8" {}
                    path d="M6 1.4a4.6 4.6 0 0 1 0 9.2z" fill="currentColor" {}
                },
            }
        }
    }
}

fn mark(class: &str, of: Shape, word: &str) -> Markup {
    html! { span class={ "st " (class) } { (shape(of)) (visible_text(word)) } }
}

/// The class of a state, which has its colour.
const fn state_class(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "dim",
        RunState::Running => "run",
        RunState::Waiting => "wait",
        RunState::Terminated => "ok",
        RunState::Truncated => "warn",
        RunState::Failed => "bad",
    }
}

/// Returns the state of a run or an entity: why it was cut off, or what it waits for.
pub(crate) fn state_mark(state: RunState, reason: Option<TruncationReason>, waiting_for: Option<ParkReason>) -> Markup {
    let class = state_class(state);
    match (state, waiting_for) {
        (RunState::Queued, _) => mark(class, Shape::Dots, "queued"),
        (RunState::Running, Some(ParkReason::HandedBack)) => orphaned_mark(),
        (RunState::Running, _) => mark(class, Shape::Ring, "running"),
        (RunState::Waiting, None) => mark(class, Shape::Bars, "waiting for a person"),
        (RunState::Waiting, Some(ParkReason::CrystalUnavailable)) => {
            mark(class, Shape::Bars, "waiting for the provider")
        }
        (RunState::Waiting, Some(ParkReason::Interrupted)) => mark(class, Shape::Bars, "interrupted"),
        (RunState::Waiting, Some(ParkReason::HandedBack)) => orphaned_mark(),
        (RunState::Waiting, Some(ParkReason::NoProgress)) => mark(class, Shape::Bars, "stopped: no progress"),
        (RunState::Terminated, _) => mark(class, Shape::Disc, "terminated"),
        (RunState::Truncated, _) => mark(class, Shape::Dashes, &truncation_word(reason)),
        (RunState::Failed, _) => mark(class, Shape::Cross, "failed"),
    }
}

/// Returns the state of one thread, of which nothing tells what it waits for.
pub(crate) fn thread_mark(state: RunState, reason: Option<TruncationReason>) -> Markup {
    match state {
        RunState::Waiting => mark(state_class(state), Shape::Bars, "waiting"),
        RunState::Queued | RunState::Running | RunState::Terminated | RunState::Truncated | RunState::Failed => {
            state_mark(state, reason, None)
        }
    }
}

/// Returns the state of a run that says that it goes on while nobody drives it.
pub(crate) fn orphaned_mark() -> Markup {
    mark("warn", Shape::HalfDisc, "orphaned")
}

/// Returns the words of a cut: `cut off: max_turns`.
pub(crate) fn truncation_word(reason: Option<TruncationReason>) -> String {
    match reason {
        Some(reason) => format!("cut off: {}", reason.as_str()),
        None => "cut off".to_owned(),
    }
}

/// Returns the type of a reply as shape, word and colour.
pub(crate) fn reply_mark(reply_type: ReplyType) -> Markup {
    let (class, of) = match reply_type {
        ReplyType::Success => ("ok", Shape::Disc),
        ReplyType::Invalid => ("warn", Shape::Triangle),
        ReplyType::Denied => ("deny", Shape::Slashed),
        ReplyType::Failure => ("bad", Shape::Cross),
    };
    mark(class, of, reply_type.word())
}

/// Returns what a live entity is doing.
pub(crate) fn doing_mark(doing: &Doing) -> Markup {
    match doing {
        Doing::Thinking => mark("run", Shape::Ring, "thinking"),
        Doing::InGate(gate) => mark("run", Shape::Ring, &format!("in {}", shortened(gate, DOING_CHARS))),
        Doing::WaitingForPerson(what) if what.is_empty() => mark("wait", Shape::Bars, "asks"),
        Doing::WaitingForPerson(what) => mark("wait", Shape::Bars, &format!("{}, asks", shortened(what, DOING_CHARS))),
        Doing::WaitingForProvider(what) if what.is_empty() => mark("wait", Shape::Bars, "waits for the provider"),
        Doing::WaitingForProvider(what) => {
            mark("wait", Shape::Bars, &format!("waits for {}", shortened(what, DOING_CHARS)))
        }
        Doing::Queued => mark("dim", Shape::Dots, "queued"),
        Doing::Ended => mark("ok", Shape::Disc, "done"),
    }
}

/// Returns the mark of a call that is being written, runs, or waits for a person.
pub(crate) fn open_mark(is_waiting: bool, word: &str) -> Markup {
    if is_waiting { mark("wait", Shape::Bars, word) } else { mark("run", Shape::Ring, word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_every_reply_has_its_own_shape_and_word() {
        let states = [
            RunState::Queued,
            RunState::Running,
            RunState::Waiting,
            RunState::Terminated,
            RunState::Truncated,
            RunState::Failed,
        ];
        let marks: Vec<String> = states.map(|state| state_mark(state, None, None).into_string()).into();
        for (at, one) in marks.iter().enumerate() {
            assert!(marks.iter().skip(at + 1).all(|other| other != one), "{one} is shown twice");
        }
        let words = ReplyType::ALL.iter().map(|it| reply_mark(*it).into_string());
        for (markup, word) in words.zip(["Success", "Invalid", "Denied", "Error"]) {
            assert!(markup.ends_with(&format!("{word}</span>")), "{markup}");
        }
    }

    #[test]
    fn a_cut_says_its_reason() {
        let markup = state_mark(RunState::Truncated, Some(TruncationReason::MaxTurns), None).into_string();
        assert!(markup.ends_with("cut off: max_turns</span>"), "{markup}");
    }
}
