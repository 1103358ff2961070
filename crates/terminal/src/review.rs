//! A person judges receipts one after the other.
//!
//! The answers are lines of standard input, so that a file of answers works as well as a person at the keyboard. Each
//! receipt is shown once; one that was skipped comes again with the next review.

use std::io::BufRead;

use cantrip_canon::json;
use cantrip_reply::{GuardedReply, Refusal, codes};
use cantrip_service::{OpenReceipt, ReviewItem, Service, VerdictRequest};
use serde_json::Value;

use crate::present::{BOLD, DIM, say, strip_control};

/// The numbers of receipts of a review.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReviewCounts {
    pub judged: u64,
    pub skipped: u64,
    /// The receipts that were not shown, because the review ended before them.
    pub left: u64,
}

/// An answer of the person.
enum ReviewAnswer {
    Good,
    /// The output is bad; the right one may follow.
    Bad(Option<Value>),
    Skip,
    Quit,
}

const CHOICES: &str = "good, bad, bad JSON (the right output), skip or quit";

fn parse_answer(line: &str) -> Result<ReviewAnswer, String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match (word.to_lowercase().as_str(), rest.trim()) {
        ("good" | "g", "") => Ok(ReviewAnswer::Good),
        ("bad" | "b", "") => Ok(ReviewAnswer::Bad(None)),
        ("bad" | "b", output) => match json::read(output) {
            Ok(expected) => Ok(ReviewAnswer::Bad(Some(expected))),
            Err(fault) => Err(format!("the right output is not JSON: {fault}")),
        },
        ("skip" | "s", "") => Ok(ReviewAnswer::Skip),
        ("quit" | "q", "") => Ok(ReviewAnswer::Quit),
        _ => Err(format!("answer with {CHOICES}")),
    }
}

fn show(item: &ReviewItem, place: usize, of: usize) {
    let shown = |value: &Option<Value>| match value {
        Some(value) => strip_control(&value.to_string()),
        None => "none".to_owned(),
    };
    say(&format!("{BOLD}{}{BOLD:#}  {place} of {of}, {}", item.receipt, item.reason));
    say(&format!("  input   {}", shown(&item.input)));
    say(&format!("  output  {}", shown(&item.output)));
    say(&format!("{DIM}{CHOICES}?{DIM:#}"));
}

/// Shows receipts that nobody has judged, and records the answers. An answer that cannot be recorded
/// is reported, and the same receipt waits for another one.
pub async fn review(
    service: &Service,
    open: &[OpenReceipt],
    by: &str,
    answers: &mut impl BufRead,
) -> Result<ReviewCounts, Refusal> {
    let of = open.len();
    let mut counts = ReviewCounts::default();
    for (place, open) in (1..).zip(open) {
        let item = service.review_item(open).await?;
        show(&item, place, of);
        let quit = judge(service, &item, by, answers, &mut counts).await?;
        if quit {
            counts.left = (of - place) as u64 + 1;
            break;
        }
    }
    Ok(counts)
}

/// Reads answers until one is recorded, or the receipt is skipped. Returns true if the review ends here.
async fn judge(
    service: &Service,
    item: &ReviewItem,
    by: &str,
    answers: &mut impl BufRead,
    counts: &mut ReviewCounts,
) -> Result<bool, Refusal> {
    loop {
        let mut line = String::new();
        let read = answers.read_line(&mut line);
        let read = read.map_err(|error| codes::io_failed("read", "standard input", error.to_string()))?;
        if read == 0 {
            return Ok(true);
        }
        let (good, expected) = match parse_answer(line.trim()) {
            Ok(ReviewAnswer::Good) => (true, None),
            Ok(ReviewAnswer::Bad(expected)) => (false, expected),
            Ok(ReviewAnswer::Skip) => {
                counts.skipped += 1;
                return Ok(false);
            }
            Ok(ReviewAnswer::Quit) => return Ok(true),
            Err(rule) => {
                say(&rule);
                continue;
            }
        };
        let (receipt, by) = (item.receipt.clone(), by.to_owned());
        let request = VerdictRequest { receipt, good, expected, labels: Vec::new(), note: None, by };
        let GuardedReply { reply, .. } = service.add_verdict(request).await;
        if reply.reply_type().is_success() {
            counts.judged += 1;
            return Ok(false);
        }
        say(&reply.message());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_word_and_bad_may_have_the_right_output() {
        assert!(matches!(parse_answer("good"), Ok(ReviewAnswer::Good)));
        assert!(matches!(parse_answer("B"), Ok(ReviewAnswer::Bad(None))));
        assert!(matches!(parse_answer("skip"), Ok(ReviewAnswer::Skip)));
        assert!(matches!(parse_answer("q"), Ok(ReviewAnswer::Quit)));
        let Ok(ReviewAnswer::Bad(Some(expected))) = parse_answer("bad {\"label\": \"praise\"}") else {
            panic!("it is a correction")
        };
        assert_eq!(expected, serde_json::json!({"label": "praise"}));
        for wrong in ["", "maybe", "bad {label}", "good {}", "skip it"] {
            assert!(parse_answer(wrong).is_err(), "{wrong}");
        }
    }
}
