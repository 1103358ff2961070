//! The calls and questions that wait for a person, each with its effect and the reason for asking.

use std::collections::HashMap;

use cantrip_service::DiskFile;
use cantrip_service::cantrip::PendingApproval;
use cantrip_service::cantrip::canon::{ApprovalId, Money, RunId, Timestamp, bytes_hash};
use cantrip_service::cantrip::circle::gate::builtin::target_path;
use cantrip_service::cantrip::loom::{
    Actor, ApprovalChoice, ApprovalDecided, ApprovalRequested, Caller, Error, Event, Kind, Ledger, ListPage, Loom,
    Overview, PageRequest, Record, RunSummary, WaitingCall,
};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::cantrip::spend::{AuthorizationRef, REASONS};
use serde_json::Value;

use crate::limits::{PROPOSAL_FILE_BYTES_MAX, WAITING_COUNTED_MAX};
use crate::proposal::{CallPlaces, asked_difference, dangers, subject_of, text_of};
use crate::redact::Redaction;
use crate::{AskedBecause, DecidedView, Proposal, ProposalSubject, Views, WaitingView, stored};

/// The name under which the runtime itself decides: nobody answered in time.
const EXPIRED_BY: &str = "cantrip";

/// The reason code of policy for a call that a ward of its circle holds back.
const OF_WARD: &str = "approval_required.ward";

/// A run with what its proposals need.
struct AskingRun {
    summary: RunSummary,
    places: CallPlaces,
}

/// A request for an approval, as the journal has it.
struct RecordedRequest {
    asked: ApprovalRequested,
    at: Timestamp,
    decided: Option<DecidedView>,
}

impl Views<'_> {
    /// Lists what waits for a person in the visible runs, the oldest first. A page may hold fewer calls than its limit
    /// and still have a next one.
    pub async fn waiting(&self, page: PageRequest) -> Result<ListPage<WaitingView>, Refusal> {
        let mut page = page;
        loop {
            let ListPage { items, next } = self.loom().waiting_calls(page).await.map_err(stored)?;
            let mut views = Vec::with_capacity(items.len());
            let mut runs = HashMap::new();
            for call in items.iter().filter(|call| self.is_asked_of_caller(call)) {
                views.extend(self.waiting_view(call, &mut runs).await?);
            }
            match next {
                Some(after) if views.is_empty() => page.after = Some(after),
                Some(_) | None => return Ok(ListPage { items: views, next }),
            }
        }
    }

    /// Counts what waits for a person in the visible runs, up to [`WAITING_COUNTED_MAX`]. No journal is read for it.
    pub async fn waiting_count(&self) -> Result<u64, Refusal> {
        let (mut count, mut next) = (0_u64, Some(PageRequest::FIRST));
        while let Some(page) = next.filter(|_| count < WAITING_COUNTED_MAX) {
            let listed = self.loom().waiting_calls(page).await.map_err(stored)?;
            count += listed.items.iter().filter(|call| self.is_asked_of_caller(call)).count() as u64;
            next = page.following(listed.next);
        }
        Ok(count.min(WAITING_COUNTED_MAX))
    }

    /// Returns an approval with what it is about, also after somebody has decided.
    pub async fn proposal(&self, run: RunId, approval: ApprovalId) -> Result<WaitingView, Refusal> {
        self.service.own_run(run).await?;
        let asking = self.asking_run(run).await?;
        let request = self.recorded_request(run, approval).await?;
        let request = request.ok_or_else(|| codes::not_found("approval", approval.to_string()))?;
        self.view_of(&asking, request).await
    }

    /// Returns true if the caller can still decide about the call.
    fn is_asked_of_caller(&self, call: &WaitingCall) -> bool {
        self.service.can_see(call.owner.as_str()) && self.service.now() < call.expires_at
    }

    /// Returns none if the call was decided while the list was read.
    async fn waiting_view(
        &self,
        call: &WaitingCall,
        runs: &mut HashMap<RunId, AskingRun>,
    ) -> Result<Option<WaitingView>, Refusal> {
        let run = call.run_id;
        let request = self.recorded_request(run, call.approval_id).await?;
        let Some(request) = request.filter(|request| request.decided.is_none()) else { return Ok(None) };
        let asking = match runs.remove(&run) {
            Some(asking) => asking,
            None => self.asking_run(run).await?,
        };
        let view = self.view_of(&asking, request).await?;
        runs.insert(run, asking);
        Ok(Some(view))
    }

    async fn asking_run(&self, run: RunId) -> Result<AskingRun, Refusal> {
        let summary = self.summary(run).await?;
        let places = match &summary.spell {
            Some(spell) => self.places_of(spell).await,
            None => CallPlaces::default(),
        };
        Ok(AskingRun { summary, places })
    }

    /// Returns the places of a spell. A spell that cannot be read any more still has the roots of its gates.
    async fn places_of(&self, spell: &str) -> CallPlaces {
        let spells = self.service.spells();
        match spells.read_spell(spell).await {
            Ok(spell) => CallPlaces::of_spell(&spell),
            Err(_) => CallPlaces::of_roots(spells.roots(spell)),
        }
    }

    /// Reads a request and its decision from the newest records of the run. A run waits for its requests, so they are
    /// near its end; a request behind many records of other entities is looked for in the whole journal.
    async fn recorded_request(&self, run: RunId, approval: ApprovalId) -> Result<Option<RecordedRequest>, Refusal> {
        let view = self.service.own_run(run).await?;
        let records = self.newest_records(&view, |piece| holds_request(piece, approval)).await?;
        if let Some(found) = request_in(&records, approval).map_err(stored)? {
            return Ok(Some(found));
        }
        let first = records.first().map_or(0, |record| record.seq.get());
        if first <= 1 {
            return Ok(None);
        }
        let records = self.records_between(&view, 0, view.newest.get()).await?;
        request_in(&records, approval).map_err(stored)
    }

    async fn view_of(&self, asking: &AskingRun, request: RecordedRequest) -> Result<WaitingView, Refusal> {
        let RecordedRequest { asked, at, decided } = request;
        let run = asking.summary.run_id;
        let pending = self.pending_call(asked.clone()).await?;
        let (subject, modified) = self.subject(asking, &asked, &pending, at).await?;
        let because = self.asked_because(run, &asked).await?;
        let left = self.money_left(&asked).await?;
        let mut redaction = Redaction::of(self);
        let subject = redact_subject(&mut redaction, subject);
        let decided = decided
            .map(|decided| DecidedView { reason: decided.reason.map(|reason| redaction.text(reason)), ..decided });
        let proposal = Proposal {
            turn: match asked.call_id.caller() {
                Caller::Turn(turn) => Some(turn),
                Caller::Fold(_) => None,
            },
            digest: digest(&subject, modified),
            subject,
            because: because.into_iter().map(|reason| redact_reason(&mut redaction, reason)).collect(),
            cost: pending.cost,
            left,
            decided,
        };
        Ok(WaitingView { run: asking.summary.clone(), asked_at: at, pending: redaction.pending(pending), proposal })
    }

    /// Returns what the call is about, and when its file was last changed.
    async fn subject(
        &self,
        asking: &AskingRun,
        asked: &ApprovalRequested,
        pending: &PendingApproval,
        at: Timestamp,
    ) -> Result<(ProposalSubject, Option<Timestamp>), Refusal> {
        // Number 0 is a request to a crystal, and so is every call of a fold.
        let is_request = asked.call_id.number() == 0 || matches!(asked.call_id.caller(), Caller::Fold(_));
        if is_request {
            let (what, arguments) = (pending.gate.clone(), pending.args.clone());
            return Ok((ProposalSubject::Money { what, arguments }, None));
        }
        match subject_of(&asking.places, pending) {
            ProposalSubject::File { path, difference, changed_since: _ } => {
                let (changed_since, modified) = self.changed_since(asking, pending, at).await?;
                Ok((ProposalSubject::File { path, difference, changed_since }, modified))
            }
            other @ (ProposalSubject::Command { .. }
            | ProposalSubject::Address { .. }
            | ProposalSubject::Child { .. }
            | ProposalSubject::Money { .. }
            | ProposalSubject::Question { .. }
            | ProposalSubject::Call { .. }) => Ok((other, None)),
        }
    }

    /// Returns the difference as it was asked for, if the file was changed or deleted since then, and the time of the
    /// file's last change. The records do not hold the file as it was when the person was asked; its time of change
    /// tells whether it is another one, unless it has the bytes that the run itself left.
    async fn changed_since(
        &self,
        asking: &AskingRun,
        call: &PendingApproval,
        asked_at: Timestamp,
    ) -> Result<(Option<String>, Option<Timestamp>), Refusal> {
        let roots = asking.places.roots();
        let Some(path) = target_path(&call.gate, &call.args) else { return Ok((None, None)) };
        let (now, modified) = match roots.file(&call.gate, &path, PROPOSAL_FILE_BYTES_MAX) {
            Some(DiskFile::File { bytes, modified }) => (Some(bytes), modified),
            Some(DiskFile::Nothing) => (None, None),
            Some(DiskFile::Hidden) | None => return Ok((None, None)),
        };
        let changed = match &now {
            Some(_) => modified.is_some_and(|modified| modified > asked_at),
            None => call.gate == "edit",
        };
        if !changed {
            return Ok((None, modified));
        }
        let left = self.service.content_left(asking.summary.run_id, roots, &call.gate, &path).await?;
        if left.is_some() && left == now {
            return Ok((None, modified));
        }
        Ok((asked_difference(call, left.as_deref()), modified))
    }

    async fn asked_because(&self, run: RunId, asked: &ApprovalRequested) -> Result<Vec<AskedBecause>, Refusal> {
        let mut because = Vec::new();
        for reason in &asked.reasons {
            let ward = text_of(reason, "ward");
            if ward.as_deref() == Some("trifecta") {
                let touched = reason.get("touched").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                let touched: Vec<String> = touched.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                because.push(AskedBecause::Trifecta(self.label_turns(run, asked, &touched).await?));
            } else if let Some(ward) = ward {
                because.push(AskedBecause::Ward(ward));
            } else if let Some(code) = text_of(reason, "policy")
                && !repeats_ward(&code, &asked.reasons)
            {
                because.push(policy_reason(&code));
            }
        }
        let reasons = Value::Array(asked.reasons.clone());
        because.extend(dangers(&reasons).map(|(path, danger)| AskedBecause::Protected { path, danger }));
        Ok(because)
    }

    /// Returns the least of what the authorization and the budget of the cast have left. None without a ledger, or if
    /// neither has a limit.
    async fn money_left(&self, asked: &ApprovalRequested) -> Result<Option<Money>, Refusal> {
        let Some(policy) = &asked.policy else { return Ok(None) };
        let of_authorization = self.authorization_left(policy.authorization_id).await?;
        let of_cast = self.cast_left(policy.authorization_id, asked).await?;
        Ok(match (of_authorization, of_cast) {
            (Some(one), Some(other)) => Some(if one.micros() <= other.micros() { one } else { other }),
            (Some(left), None) | (None, Some(left)) => Some(left),
            (None, None) => None,
        })
    }

    async fn authorization_left(&self, id: AuthorizationRef) -> Result<Option<Money>, Refusal> {
        match self.loom().authorization(id).await {
            Ok(payer) => Ok(payer.remaining().and_then(|left| Money::new(left.max(0), payer.terms().currency).ok())),
            Err(Error::NoLedger) => Ok(None),
            Err(error) => Err(stored(error)),
        }
    }

    async fn cast_left(&self, id: AuthorizationRef, asked: &ApprovalRequested) -> Result<Option<Money>, Refusal> {
        let cast = self.loom().cast(asked.cast_id).await.map_err(stored)?.cast;
        let Some(scope) = cast.budget_scope else { return Ok(None) };
        let cap = match self.loom().cap(id, scope).await {
            Ok(cap) => cap,
            Err(Error::NoLedger) => None,
            Err(error) => return Err(stored(error)),
        };
        Ok(cap.and_then(|cap| {
            let used = cap.counters.spent.saturating_add(cap.counters.reserved);
            let left = cap.terms.limit.micros().saturating_sub(used).max(0);
            Money::new(left, cap.terms.limit.currency()).ok()
        }))
    }
}

/// Returns true if one of these records requests the approval. A record that cannot be read is reported later.
fn holds_request(records: &[Record], approval: ApprovalId) -> bool {
    records.iter().filter(|record| record.kind == Kind::ApprovalRequested).any(|record| match record.event() {
        Ok(event) => event.as_approval_requested().is_some_and(|asked| asked.approval_id == approval),
        Err(_) => true,
    })
}

fn request_in(records: &[Record], approval: ApprovalId) -> Result<Option<RecordedRequest>, Error> {
    let mut found: Option<RecordedRequest> = None;
    for record in records {
        if record.kind != Kind::ApprovalRequested && record.kind != Kind::ApprovalDecided {
            continue;
        }
        let event = record.event()?;
        if let Event::ApprovalRequested(asked) = event {
            if asked.approval_id == approval {
                found = Some(RecordedRequest { asked, at: record.at, decided: None });
            }
        } else if let Event::ApprovalDecided(decided) = event
            && decided.approval_id == approval
            && let Some(found) = &mut found
        {
            // The first decision counts.
            found.decided = found.decided.take().or_else(|| decision(decided, record.at));
        }
    }
    Ok(found)
}

fn decision(decided: ApprovalDecided, at: Timestamp) -> Option<DecidedView> {
    let ApprovalDecided { decision, actor, reason, .. } = decided;
    let (approved, reason) = match decision {
        ApprovalChoice::Approved => (true, reason),
        ApprovalChoice::Refused => (false, reason),
        ApprovalChoice::Expired => (false, Some("no decision was made in time".to_owned())),
    };
    let by = actor.or_else(|| Actor::new(EXPIRED_BY).ok())?;
    Some(DecidedView { approved, by, at, reason })
}

/// Returns true if policy asks only because of a reason of the circle that is listed itself.
fn repeats_ward(code: &str, reasons: &[Value]) -> bool {
    code == OF_WARD && reasons.iter().any(|reason| reason.get("ward").is_some() || reason.get("danger").is_some())
}

fn policy_reason(code: &str) -> AskedBecause {
    let meaning = REASONS.iter().find(|reason| reason.code == code).map_or(code, |reason| reason.meaning).to_owned();
    match code {
        "approval_required.interactive" => AskedBecause::Mode(meaning),
        "approval_required.over_threshold" => AskedBecause::Threshold(meaning),
        _ => AskedBecause::Policy(meaning),
    }
}

/// Returns a text that changes with the subject. It is taken after redaction, so that it tells nothing of a secret, and
/// with the time of the file, so that a change of a secret in it changes it too.
fn digest(subject: &ProposalSubject, modified: Option<Timestamp>) -> String {
    bytes_hash(format!("{subject:?} {modified:?}").as_bytes()).to_string()
}

fn redact_subject(redaction: &mut Redaction<'_>, subject: ProposalSubject) -> ProposalSubject {
    match subject {
        ProposalSubject::File { path, difference, changed_since } => ProposalSubject::File {
            path: redaction.text(path),
            difference: difference.map(|text| redaction.text(text)),
            changed_since: changed_since.map(|text| redaction.text(text)),
        },
        ProposalSubject::Command { arguments, folder, input } => ProposalSubject::Command {
            arguments: arguments.into_iter().map(|argument| redaction.text(argument)).collect(),
            folder: redaction.text(folder),
            input: input.map(|input| redaction.value(input)),
        },
        ProposalSubject::Address { method, url, host, punycode, input } => ProposalSubject::Address {
            method,
            url: redaction.text(url),
            host: redaction.text(host),
            punycode,
            input: input.map(|input| redaction.value(input)),
        },
        ProposalSubject::Child { spell, intents } => ProposalSubject::Child {
            spell,
            intents: intents.into_iter().map(|intent| redaction.text(intent)).collect(),
        },
        ProposalSubject::Money { what, arguments } => {
            ProposalSubject::Money { what, arguments: redaction.value(arguments) }
        }
        ProposalSubject::Question { text, choices } => ProposalSubject::Question {
            text: redaction.text(text),
            choices: choices.into_iter().map(|choice| redaction.text(choice)).collect(),
        },
        ProposalSubject::Call { gate, arguments } => {
            ProposalSubject::Call { gate, arguments: redaction.value(arguments) }
        }
    }
}

fn redact_reason(redaction: &mut Redaction<'_>, reason: AskedBecause) -> AskedBecause {
    match reason {
        AskedBecause::Protected { path, danger } => {
            AskedBecause::Protected { path: redaction.text(path), danger: redaction.text(danger) }
        }
        AskedBecause::Ward(_)
        | AskedBecause::Mode(_)
        | AskedBecause::Threshold(_)
        | AskedBecause::Trifecta(_)
        | AskedBecause::Policy(_) => reason,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policy_repeats_only_a_ward_that_is_listed_beside_it() {
        let policy = |code: &str| json!({ "policy": code });
        let over = "approval_required.over_threshold";
        let ward = json!({"ward": "require_approval"});
        let danger = json!({"path": ".git/config", "danger": "it names programs that run later"});
        assert!(repeats_ward(OF_WARD, &[ward.clone(), policy(OF_WARD)]));
        assert!(repeats_ward(OF_WARD, &[danger, policy(OF_WARD)]));
        assert!(!repeats_ward(OF_WARD, &[policy(OF_WARD)]), "nothing else would tell the reason");
        assert!(!repeats_ward(over, &[ward, policy(over)]), "the price is a reason of its own");
        assert!(cantrip_service::cantrip::spend::Reason::of(OF_WARD).is_some(), "policy has this code");
    }
}
