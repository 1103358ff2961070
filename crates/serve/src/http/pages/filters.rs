//! The filters of the list of runs, as the address of the page has them.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use cantrip_pages::RunFilters;
use cantrip_service::cantrip::canon::{Money, Timestamp};
use cantrip_service::cantrip::loom::{PageRequest, RunState, SummaryFilter};
use cantrip_service::cantrip::loom_id_for;
use cantrip_service::cantrip::reply::{Refusal, codes};
use url::form_urlencoded;

use crate::http::HttpServer;
use crate::http::answer::Answer;
use crate::http::tokens::parse_owner;
use crate::limits::{PAGE_FILTERS_MAX, PAGE_ROWS, PAGE_ROWS_MAX, PAGE_WORDS_CHARS_MAX};

const DAY_MS: i64 = 86_400_000;

/// The runs that a person wants to see.
#[derive(Debug)]
pub(super) struct RunsQuery {
    /// The filters as they were typed.
    pub(super) typed: RunFilters,
    pub(super) filter: SummaryFilter,
    pub(super) page: PageRequest,
    /// The beginning of today.
    pub(super) today: Timestamp,
}

impl FromRequestParts<HttpServer> for RunsQuery {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, http: &HttpServer) -> Result<Self, Answer> {
        match Self::read(parts.uri.query().unwrap_or_default(), http.now()) {
            Ok(query) => Ok(query),
            Err(refusal) => Err(http.refusal_reply(refusal).await.into()),
        }
    }
}

impl RunsQuery {
    fn read(query: &str, now: Timestamp) -> Result<Self, Refusal> {
        let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        if pairs.len() > PAGE_FILTERS_MAX {
            return Err(codes::limit("the number of conditions", pairs.len(), PAGE_FILTERS_MAX).into());
        }
        let (mut typed, mut before, mut most) = (RunFilters::default(), None, PAGE_ROWS);
        for (name, value) in &pairs {
            let value = value.trim();
            let number = || value.parse::<u64>().map_err(|_| invalid(name, "it is not a number"));
            let field = match name.as_str() {
                "state" => &mut typed.state,
                "spell" => &mut typed.spell,
                "owner" => &mut typed.owner,
                "crystal" => &mut typed.crystal,
                "gate" => &mut typed.gate,
                "code" => &mut typed.code,
                "cost" => &mut typed.cost,
                "since" => &mut typed.since,
                "q" => &mut typed.q,
                "before" => {
                    before = Some(number()?);
                    continue;
                }
                "most" => {
                    most = usize::try_from(number()?).unwrap_or(PAGE_ROWS_MAX).clamp(1, PAGE_ROWS_MAX);
                    continue;
                }
                // Two rows that are ticked are not part of the list; they are for the comparison.
                "of" => continue,
                _ => return Err(invalid(name, "there is no such filter")),
            };
            value.clone_into(field);
        }
        let today = beginning_of_day(now);
        let filter = filter(&typed, now, today)?;
        Ok(Self { typed, filter, page: PageRequest { after: before, most }, today })
    }
}

fn invalid(name: &str, rule: &str) -> Refusal {
    codes::schema("the query", format!("/{name}"), rule).into()
}

fn filter(typed: &RunFilters, now: Timestamp, today: Timestamp) -> Result<SummaryFilter, Refusal> {
    let words = typed.q.chars().count();
    if words > PAGE_WORDS_CHARS_MAX {
        return Err(codes::limit("the length of the words", words, PAGE_WORDS_CHARS_MAX).into());
    }
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let states = typed.state.split(',').map(str::trim).filter(|state| !state.is_empty());
    let owner = given(&typed.owner).map(|owner| parse_owner(&owner).map_err(|rule| invalid("owner", &rule)));
    Ok(SummaryFilter {
        states: states.map(state).collect::<Result<_, _>>()?,
        // Most records do not name their spell, and all casts of a spell are in its loom.
        loom: given(&typed.spell).map(|spell| loom_id_for(&spell)),
        owner: owner.transpose()?,
        crystal: given(&typed.crystal),
        gate: given(&typed.gate),
        code: given(&typed.code),
        cost_micros_min: given(&typed.cost).map(|cost| least_cost(&cost)).transpose()?,
        since: given(&typed.since).map(|since| time(&since, now, today)).transpose()?,
        text: given(&typed.q),
        ..SummaryFilter::default()
    })
}

fn state(word: &str) -> Result<RunState, Refusal> {
    match word {
        "queued" => Ok(RunState::Queued),
        "running" => Ok(RunState::Running),
        "waiting" => Ok(RunState::Waiting),
        "terminated" => Ok(RunState::Terminated),
        "truncated" => Ok(RunState::Truncated),
        "failed" => Ok(RunState::Failed),
        _ => Err(invalid("state", "it is queued, running, waiting, terminated, truncated or failed")),
    }
}

/// Reads an amount with or without a currency.
fn least_cost(text: &str) -> Result<i64, Refusal> {
    let text = text.trim_start_matches('>');
    let written = if text.contains(char::is_alphabetic) { text.to_owned() } else { format!("{text} USD") };
    let amount = written.parse::<Money>().map_err(|fault| invalid("cost", &fault.to_string()))?;
    Ok(amount.micros())
}

/// Reads `today`, an age such as `2d`, `12h` or `30m`, or a day.
fn time(text: &str, now: Timestamp, today: Timestamp) -> Result<Timestamp, Refusal> {
    if text == "today" {
        return Ok(today);
    }
    let wrong = || invalid("since", "it is today, an age such as 2d, 12h or 30m, or a day such as 2026-02-19");
    let units = [('d', DAY_MS), ('h', 3_600_000), ('m', 60_000)];
    let age = units.iter().find_map(|(unit, ms)| Some((text.strip_suffix(*unit)?.parse::<u32>().ok()?, *ms)));
    if let Some((count, unit)) = age {
        let since = now.unix_millis().saturating_sub(i64::from(count).saturating_mul(unit)).max(0);
        return Timestamp::from_unix_millis(since).map_err(|_| wrong());
    }
    let whole = if text.len() == "2026-02-19".len() { format!("{text}T00:00:00.000Z") } else { text.to_owned() };
    whole.parse().map_err(|_| wrong())
}

fn beginning_of_day(now: Timestamp) -> Timestamp {
    let begun = now.unix_millis() - now.unix_millis().rem_euclid(DAY_MS);
    Timestamp::from_unix_millis(begun).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<RunsQuery, Refusal> {
        RunsQuery::read(query, "2026-02-19T10:30:00.000Z".parse().expect("a time"))
    }

    #[test]
    fn every_filter_of_the_address_is_a_condition() {
        let code = codes::NOT_FOUND.as_str();
        let query = format!(
            "state=failed,truncated&spell=analyst&owner=ann&crystal=c&gate=read&code={code}&cost=0.5\
                     &since=2d&q=the+risk&before=7&most=900"
        );
        let RunsQuery { typed, filter, page, today } = read(&query).expect("known filters");
        assert_eq!(filter.states, [RunState::Failed, RunState::Truncated]);
        assert_eq!(filter.loom, Some(loom_id_for("analyst")));
        assert_eq!(filter.owner.as_ref().map(|owner| owner.as_str()), Some("user:ann"));
        assert_eq!(filter.cost_micros_min, Some(500_000));
        assert_eq!(filter.since.map(|since| since.to_string()).as_deref(), Some("2026-02-17T10:30:00.000Z"));
        assert_eq!(filter.text.as_deref(), Some("the risk"));
        assert_eq!((page.after, page.most), (Some(7), PAGE_ROWS_MAX));
        assert_eq!(today.to_string(), "2026-02-19T00:00:00.000Z");
        assert_eq!((typed.cost.as_str(), typed.since.as_str()), ("0.5", "2d"));
        let since = |text: &str| read(&format!("since={text}")).expect("a time").filter.since.map(|at| at.to_string());
        assert_eq!(since("today").as_deref(), Some("2026-02-19T00:00:00.000Z"));
        assert_eq!(since("2026-02-01").as_deref(), Some("2026-02-01T00:00:00.000Z"));
        assert_eq!(since("99999999d").as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(read("").expect("no filter").filter, SummaryFilter::default());
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for query in ["state=asleep", "cost=lots", "since=soon", "since=-1d", "before=x", "colour=red"] {
            assert_eq!(read(query).expect_err("no filter").code(), codes::SCHEMA, "{query}");
        }
        assert_eq!(read(&"q=a&".repeat(17)).expect_err("too many").code(), codes::LIMIT);
        assert_eq!(read(&format!("q={}", "a".repeat(201))).expect_err("too long").code(), codes::LIMIT);
    }
}
