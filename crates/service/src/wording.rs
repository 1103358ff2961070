//! Numbers and verdicts of evaluations and compiles in words, the same on a terminal, in a page and in a message.
//!
//! Every number is made from whole micro-units by exact rounding, so two surfaces never show different digits.

use cantrip::canon::{Currency, Money};
use cantrip_ds::contract::{
    CandidateId, CompileCandidatePart, CompileReport, EvalReport, EvalStatus, EvalVerdict, Split,
};
use cantrip_improve::eval::SuggestedAction;

/// Returns a number of micro-units with this many places, 0 to 6, rounded half away from zero.
pub fn decimal(micro: i64, places: u32) -> String {
    let places = places.min(6);
    let unit = 10_i128.pow(6 - places);
    let rounded = (2 * i128::from(micro).abs() + unit) / (2 * unit);
    let whole = 10_i128.pow(places);
    // Minus zero is zero.
    let sign = if micro < 0 && rounded > 0 { "-" } else { "" };
    match places {
        0 => format!("{sign}{rounded}"),
        _ => format!("{sign}{}.{:0width$}", rounded / whole, rounded % whole, width = places as usize),
    }
}

/// Returns a difference with its sign: a plus where it is above zero.
pub fn signed(micro: i64, places: u32) -> String {
    let text = decimal(micro, places);
    if micro > 0 && !is_zero(&text) { format!("+{text}") } else { text }
}

fn is_zero(text: &str) -> bool {
    text.chars().all(|char| matches!(char, '0' | '.'))
}

/// Returns a score with three places.
pub fn score(micro: i64) -> String {
    decimal(micro, 3)
}

/// Returns both ends of an interval, as in `0.593 .. 0.811`.
pub fn interval(low: i64, high: i64) -> String {
    format!("{} .. {}", score(low), score(high))
}

/// Returns the cost of one call with four places, or with all six if it would read as zero.
pub fn per_call(micros: i64, currency: Option<Currency>) -> String {
    let Some(currency) = currency.filter(|_| micros != 0) else { return "nothing".to_owned() };
    let short = decimal(micros, 4);
    let text = if is_zero(&short) { decimal(micros, 6) } else { short };
    format!("{text} {currency}")
}

/// Returns a whole amount as money is written.
pub fn amount(micros: i64, currency: Option<Currency>) -> String {
    match currency.filter(|_| micros != 0).map(|currency| Money::new(micros, currency)) {
        Some(Ok(money)) => money.to_string(),
        Some(Err(_)) => decimal(micros, 6),
        None => "nothing".to_owned(),
    }
}

/// Returns a duration: `812 ms`, `1.2 s`, `14 min 08 s`.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => {
            let tenths = (ms + 50) / 100;
            format!("{}.{} s", tenths / 10, tenths % 10)
        }
        _ => {
            let seconds = (ms + 500) / 1_000;
            format!("{} min {:02} s", seconds / 60, seconds % 60)
        }
    }
}

/// Returns the time that is left, in words: `about 4 min left`.
pub fn time_left(ms: u64) -> String {
    match ms {
        0..60_000 => format!("about {} s left", ms.div_ceil(1_000)),
        60_000..7_200_000 => format!("about {} min left", (ms + 30_000) / 60_000),
        _ => format!("about {} h left", (ms + 1_800_000) / 3_600_000),
    }
}

/// Returns the beginning of an id that a person can type: its prefix and four digits, as in `art_81c1`. Text without a
/// prefix is returned as it is.
pub fn short_id(id: &str) -> &str {
    let is_long = |(prefix, digits): &(&str, &str)| {
        prefix.bytes().all(|byte| byte.is_ascii_lowercase())
            && digits.len() > SHORT_DIGITS
            && digits.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    match id.split_once('_').filter(is_long) {
        Some((prefix, _)) => &id[..prefix.len() + 1 + SHORT_DIGITS],
        None => id,
    }
}

const SHORT_DIGITS: usize = 4;

/// Returns the arguments of the command that follows a suggestion, without the name of the program; none to keep what
/// is served, and for spells, which no pointer serves.
pub fn next_command(report: &EvalReport, action: SuggestedAction) -> Option<String> {
    let signature = report.signature_id.signature()?.name();
    let artifact = short_id(report.compiled_id.as_str());
    match action {
        SuggestedAction::Promote => Some(format!("pointer promote {signature} {artifact}")),
        SuggestedAction::Canary => Some(format!("pointer canary {signature} {artifact} --percent 10")),
        SuggestedAction::Keep => None,
    }
}

/// Returns true if a compile chose another candidate than its base.
pub fn has_winner(report: &CompileReport) -> bool {
    report.selected.as_ref().is_some_and(|selected| *selected != report.base)
}

/// Returns how a candidate was made: `reflect on instructions, from art_fa31`.
pub fn candidate_origin(candidate: &CompileCandidatePart) -> String {
    let op = candidate.op.to_string();
    // A step that is called like the slot that it changes is named once.
    let other_slot = candidate.component.as_ref().filter(|slot| **slot != op);
    let component = other_slot.map_or_else(String::new, |slot| format!(" on {slot}"));
    let parents: Vec<&str> = candidate.parents.iter().map(|id| short_id(id.as_str())).collect();
    let from = if parents.is_empty() { String::new() } else { format!(", from {}", parents.join(" and ")) };
    format!("{op}{component}{from}")
}

/// Returns the outcome of a compile as one sentence.
pub fn compile_outcome(report: &CompileReport) -> String {
    let holdout = |id: &CandidateId| report.candidate(id).and_then(|candidate| candidate.holdout);
    let told = |mean: Option<u64>| mean.map_or_else(|| "no score".to_owned(), |mean| score(micro(mean)));
    let (base, start) = (short_id(report.base.as_str()), told(holdout(&report.base)));
    let found = match report.selected.as_ref().filter(|selected| **selected != report.base) {
        Some(selected) => format!(
            "{} is the best of {} candidates: {} on holdout, {start} at the start",
            short_id(selected.as_str()),
            report.candidates.len(),
            told(holdout(selected))
        ),
        None => format!("no candidate is better than {base} ({start} on holdout), so nothing was tested"),
    };
    match report.status {
        EvalStatus::Succeeded => found,
        EvalStatus::BudgetExhausted => format!("budget exhausted: {found}"),
        EvalStatus::Incomplete | EvalStatus::Cancelled | EvalStatus::Failed => {
            format!("{}: {found}", report.status.as_str())
        }
    }
}

/// Returns the verdict of an evaluation as one sentence, with its reason.
pub fn verdict(report: &EvalReport) -> String {
    if report.status != EvalStatus::Succeeded {
        return ending(report);
    }
    let (Some(verdict), Some(delta)) = (report.verdict, report.delta) else {
        return match (report.baseline_id.is_some(), report.split) {
            (true, Split::Train | Split::Holdout) => {
                format!("no verdict: {} is not the test split, so it supports no promotion", report.split)
            }
            (true, Split::Test) => "no verdict: no example was scored on both sides".to_owned(),
            (false, _) => "no verdict: there is no baseline to compare with".to_owned(),
        };
    };
    let (low, high) = report.look.map_or((delta.low, delta.high), |look| (look.low, look.high));
    let word = verdict.as_str();
    match (verdict, report.look) {
        (EvalVerdict::Better | EvalVerdict::Worse, Some(look)) if look.k > 1 => {
            format!("{word}: the interval of look {} excludes 0, and the flip test passes its level", look.k)
        }
        (EvalVerdict::Better | EvalVerdict::Worse, _) => format!("{word}: the interval excludes 0"),
        (EvalVerdict::Undecided, Some(look)) if low > 0 || high < 0 => format!(
            "{word}: the interval excludes 0, but at look {} the flip test has to reach {} (it is {})",
            look.k,
            decimal(micro(look.level_ppm), 4),
            decimal(micro(delta.flip_p_ppm), 4)
        ),
        (EvalVerdict::Undecided, _) => {
            let small = report.detectable.map_or_else(String::new, |least| {
                format!(
                    "; with {} differences under {} will probably not show",
                    sample(report),
                    decimal(micro(least), 2)
                )
            });
            format!("{word}: the interval includes 0{small}")
        }
    }
}

/// Returns the sample in words: the examples, or the groups that they form.
fn sample(report: &EvalReport) -> String {
    match report.units {
        1 => "1 example".to_owned(),
        units if units == report.scored => format!("{units} examples"),
        units => format!("{units} groups of examples"),
    }
}

/// Returns how an evaluation ended that did not succeed, and why it supports no promotion.
fn ending(report: &EvalReport) -> String {
    let word = report.status.as_str();
    match report.status {
        EvalStatus::Succeeded => word.to_owned(),
        EvalStatus::Incomplete => {
            let count: u64 = report.unscored.values().sum();
            let flips = report.judge.and_then(|judge| judge.position_flips);
            let why = match (count, flips) {
                (0, Some(flips)) => {
                    format!(
                        "the judge changed its mind with the order of the answers in {} of the pairs",
                        percent(flips)
                    )
                }
                _ => format!("{count} trials have no score ({})", reasons(report)),
            };
            format!("{word}: {why}; it supports no promotion")
        }
        EvalStatus::BudgetExhausted => {
            format!(
                "budget exhausted: {} of {} examples were scored; it supports no promotion",
                report.scored, report.examples
            )
        }
        EvalStatus::Cancelled => {
            format!("{word}: {} of {} examples were scored; it supports no promotion", report.scored, report.examples)
        }
        EvalStatus::Failed => format!("{word}; it supports no promotion"),
    }
}

/// Returns the reasons of the trials without a score, each with its number.
pub fn reasons(report: &EvalReport) -> String {
    let listed: Vec<String> = report.unscored.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    listed.join(", ")
}

/// Returns a share in millionths as a percentage without places.
pub fn percent(micro_share: u64) -> String {
    format!("{} %", decimal(micro(micro_share.saturating_mul(100)), 0))
}

/// Returns a number of the report as micro-units with a sign. Such numbers are far below the bound.
pub fn micro(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_exactly() {
        let cases = [
            (714_286, 3, "0.714"),
            (999_500, 3, "1.000"),
            (999_499, 3, "0.999"),
            (-16_000, 3, "-0.016"),
            (-499, 3, "0.000"),
            (-500, 3, "-0.001"),
            (1_500_000, 0, "2"),
            (123_456, 6, "0.123456"),
            (0, 3, "0.000"),
        ];
        for (micro, places, text) in cases {
            assert_eq!(decimal(micro, places), text, "{micro} with {places}");
        }
        assert_eq!(
            [signed(127_000, 3), signed(-127_000, 3), signed(0, 3), signed(100, 3)],
            ["+0.127", "-0.127", "0.000", "0.000"]
        );
        assert_eq!(interval(-16_000, 270_000), "-0.016 .. 0.270");
    }

    #[test]
    fn money_times_and_ids_read_as_a_person_writes_them() {
        assert_eq!(per_call(900, Some(Currency::USD)), "0.0009 USD");
        assert_eq!(per_call(12, Some(Currency::USD)), "0.000012 USD");
        assert_eq!([per_call(0, Some(Currency::USD)), per_call(9, None)], ["nothing", "nothing"]);
        assert_eq!(amount(420_000, Some(Currency::USD)), "0.42 USD");
        assert_eq!([duration(812), duration(1_240), duration(848_000)], ["812 ms", "1.2 s", "14 min 08 s"]);
        assert_eq!(time_left(41_000), "about 41 s left");
        assert_eq!(time_left(250_000), "about 4 min left");
        assert_eq!(short_id("art_81c1fe0d3fddf815ca1d64e85e6aa6fb"), "art_81c1");
        assert_eq!([short_id("spell:my_agent"), short_id("ex_01")], ["spell:my_agent", "ex_01"]);
    }

    fn report(change: impl FnOnce(&mut EvalReport)) -> EvalReport {
        let hash = format!("sha256:{}", "0".repeat(64));
        let body = serde_json::json!({"v": 1, "kind": "eval_report", "eval_id": "eval_7ff632b01ba6f3185c94459a",
            "report_id": "evr_f832d718dbdbf5043b062f77", "job_hash": hash, "status": "succeeded",
            "signature_id": "@me/support/Triage.v1", "compiled_id": "art_81c1fe0d3fddf815ca1d64e85e6aa6fb",
            "baseline_id": "art_fa314739a6ab692b5cd3d96708665e89", "dataset_hash": hash, "split": "test",
            "metric_hash": hash, "results_hash": hash, "models": {"task": null, "judge": null}, "epochs": 1,
            "examples": 63, "units": 63, "scored": 63, "unscored": {}, "own_failures": {"subject": 0, "baseline": 0},
            "score": null, "baseline": null,
            "delta": {"mean": 127000, "low": -16000, "high": 270000, "wins": 14, "losses": 6, "ties": 43,
                "sign_p_ppm": 115318, "flip_p_ppm": 21300},
            "look": {"k": 1, "level_ppm": 25000, "low": -16000, "high": 270000}, "verdict": "undecided",
            "detectable": 193218,
            "cost": {"currency": null, "total": 0, "judge": 0, "unreconciled": 0, "per_call": 0, "baseline_per_call": 0},
            "latency_ms": null, "judge": null, "labels": [], "created_at": "2026-02-19T02:00:00.000Z"});
        let mut report = EvalReport::from_value(&body).expect("a report");
        change(&mut report);
        report
    }

    #[test]
    fn a_verdict_says_why() {
        assert_eq!(
            verdict(&report(|_| {})),
            "undecided: the interval includes 0; with 63 examples differences under 0.19 will probably not show"
        );
        let grouped = report(|report| report.units = 20);
        assert!(verdict(&grouped).contains("with 20 groups of examples"), "{}", verdict(&grouped));
        let later = report(|report| {
            if let Some(look) = &mut report.look {
                (look.k, look.level_ppm, look.low) = (2, 8_333, 4_000);
            }
        });
        assert_eq!(
            verdict(&later),
            "undecided: the interval excludes 0, but at look 2 the flip test has to reach 0.0083 (it is 0.0213)"
        );
        let better = report(|report| report.verdict = Some(EvalVerdict::Better));
        assert_eq!(verdict(&better), "better: the interval excludes 0");
        let alone = report(|report| (report.baseline_id, report.verdict, report.delta) = (None, None, None));
        assert_eq!(verdict(&alone), "no verdict: there is no baseline to compare with");
        let holdout = report(|report| (report.split, report.verdict) = (Split::Holdout, None));
        assert_eq!(verdict(&holdout), "no verdict: holdout is not the test split, so it supports no promotion");
        let incomplete = report(|report| {
            report.status = EvalStatus::Incomplete;
            report.unscored.insert(cantrip_ds::contract::Unscored::Infrastructure, 7);
        });
        assert_eq!(
            verdict(&incomplete),
            "incomplete: 7 trials have no score (7 infrastructure); it supports no promotion"
        );
    }

    fn compile_report(selected: &str, status: &str) -> CompileReport {
        let hash = format!("sha256:{}", "0".repeat(64));
        let (base, winner) = (format!("art_fa31{}", "0".repeat(28)), format!("art_81c1{}", "0".repeat(28)));
        let candidate = |id: &str, ordinal: u64, holdout: u64| {
            let is_base = ordinal == 0;
            serde_json::json!({"compiled_id": id, "ordinal": ordinal, "op": if is_base { "base" } else { "reflect" },
                "parents": if is_base { vec![] } else { vec![base.clone()] },
                "component": if is_base { None } else { Some("instructions") }, "accepted": true, "reason": null,
                "holdout": holdout, "trials": 41, "per_call": 0})
        };
        let body = serde_json::json!({"v": 1, "kind": "compile_report", "report_id": format!("cmp_{}", "0".repeat(24)),
            "job_hash": hash, "status": status, "signature_id": "@me/support/Triage.v1", "dataset_hash": hash,
            "metric_hash": hash, "optimiser": {"id": "gepa.v1", "options": {}},
            "models": {"task": null, "teacher": null, "reflect": null, "judge": null}, "seed": "default",
            "compiler_version": "improve.v1", "base": base,
            "selected": if selected == "winner" { winner.clone() } else { base.clone() },
            "candidates": [candidate(&base, 0, 205_128), candidate(&winner, 1, 512_821)],
            "curve": [[41, 205_128], [82, 512_821]], "proposals": {"made": 1, "rejected": {}, "accepted": 1},
            "trials": {"train": 0, "holdout": 82, "test": 0, "unscored": 0},
            "budget": {"asked": {"currency": null, "amount": null, "calls": null, "proposals": null},
                "used": {"currency": null, "amount": 0, "unreconciled": 0, "calls": 82, "proposals": 1}},
            "optimism": null, "eval_id": null, "suggestion": {"action": "keep", "reason": "nothing was tested"},
            "created_at": "2026-02-19T02:00:00.000Z"});
        CompileReport::from_value(&body).expect("a report")
    }

    #[test]
    fn the_outcome_of_a_compile_names_the_winner_or_the_base() {
        let found = compile_report("winner", "succeeded");
        assert!(has_winner(&found));
        assert_eq!(
            compile_outcome(&found),
            "art_81c1 is the best of 2 candidates: 0.513 on holdout, 0.205 at the start"
        );
        assert_eq!(candidate_origin(&found.candidates[1]), "reflect on instructions, from art_fa31");
        assert_eq!(candidate_origin(&found.candidates[0]), "base");
        let kept = compile_report("base", "budget_exhausted");
        assert!(!has_winner(&kept));
        assert_eq!(
            compile_outcome(&kept),
            "budget exhausted: no candidate is better than art_fa31 (0.205 on holdout), so nothing was tested"
        );
    }

    #[test]
    fn the_next_command_follows_the_suggestion() {
        let of = |action| next_command(&report(|_| {}), action);
        assert_eq!(of(SuggestedAction::Promote).as_deref(), Some("pointer promote Triage art_81c1"));
        assert_eq!(of(SuggestedAction::Canary).as_deref(), Some("pointer canary Triage art_81c1 --percent 10"));
        assert_eq!(of(SuggestedAction::Keep), None);
    }
}
