//! Approval of waiting calls at the terminal, while the cast is still on the screen.
//!
//! This is the same mechanism as `run approve` and `run refuse`: the run waits, a decision is recorded, the run
//! resumes. Here the user is only asked at once, and sees the effect of the call: the diff of a file, the command for a
//! shell.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};

use cantrip::canon::RunId;
use cantrip::circle::gate::builtin::{Human, Question};
use cantrip::loom::Actor;
use cantrip::{Cancel, Cantrip, CastReply, HumanDecision, PendingApproval};
use cantrip_service::Service;
use cantrip_spell::Spell;
use cantrip_view::{CallPlaces, ProposalSubject, edit_of, subject_of, trifecta_remedy};

use crate::limits::{DIFF_SHOWN_FILE_BYTES_MAX, DIFF_SHOWN_LINES};
use crate::present::{cut, say, strip_control};
use crate::user::TerminalUser;
use crate::watch::{OutputMode, Viewer};

pub use cantrip_view::danger_sentences as dangers;

const ONCE: &str = "yes, once";
const FOR_THE_RUN: &str = "yes, for the rest of this run";
const REFUSE: &str = "no, and say why";

/// Returns true if a user can see the cast and be asked: it is drawn, and the process has a terminal.
pub fn can_prompt(shows: OutputMode) -> bool {
    shows.is_drawn() && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Shows a cast until it ends or waits for something that the user at the terminal does not decide. `before_resume` runs
/// before the run is resumed with the user's decisions.
pub async fn follow_cast(
    viewer: &mut Viewer,
    service: &Service,
    (spell, cantrip): (&Spell, &Cantrip),
    cancel: &Cancel,
    cast: impl Future<Output = CastReply>,
    mut before_resume: impl AsyncFnMut(),
) -> CastReply {
    let mut reply = viewer.watch(cancel, cast).await;
    let places = CallPlaces::of_spell(spell);
    let mut approvals = Approvals { places, shows: viewer.mode(), granted: BTreeSet::new() };
    while let Some(run) = approvals.decide_pending(service, &reply).await {
        before_resume().await;
        reply = viewer.watch(cancel, service.resume(cantrip, run, cancel)).await;
    }
    reply
}

/// The decisions of the user at the terminal about the calls of one run.
struct Approvals {
    places: CallPlaces,
    shows: OutputMode,
    /// The gates that the user approved for the rest of this run.
    granted: BTreeSet<String>,
}

impl Approvals {
    /// Asks about every call that a parked run waits for. Returns the run if it can be resumed now.
    async fn decide_pending(&mut self, service: &Service, reply: &CastReply) -> Option<RunId> {
        let run = reply.run.filter(|_| reply.waits_for_person() && can_prompt(self.shows))?;
        let pending = service.pending(run).await.ok()?;
        if pending.is_empty() {
            return None;
        }
        for call in &pending {
            let deciding = self.ask_about(call).await?;
            let decided = service.decide(run, call.approval_id, deciding).await;
            if !decided.reply.reply_type().is_success() {
                say(&strip_control(&decided.reply.message()));
                return None;
            }
        }
        Some(run)
    }

    /// Asks about one call. Returns None if the user does not answer; the run then keeps waiting.
    async fn ask_about(&mut self, call: &PendingApproval) -> Option<HumanDecision> {
        let person = Actor::new("person at the terminal").ok()?;
        // A call that costs money or affects later casts is asked about every time.
        let dangers = dangers(&call.reasons);
        if call.cost.is_none() && dangers.is_empty() && self.granted.contains(&call.gate) {
            return Some(HumanDecision::approve(person));
        }
        let choices = vec![ONCE.to_owned(), FOR_THE_RUN.to_owned(), REFUSE.to_owned()];
        let mut question = match &call.cost {
            Some(cost) => format!("May it spend up to {cost} on {}?\n{}", call.gate, self.render_call(call)),
            None => format!("May it call {}?\n{}", call.gate, self.render_call(call)),
        };
        for danger in dangers {
            question.push_str(&format!("\n{}", strip_control(&danger)));
        }
        if let Some(why) = trifecta_warning(call) {
            question.push_str(&format!("\n{why}"));
        }
        if let Some(code) = &call.reason_code {
            question.push_str(&format!("\n({})", strip_control(code)));
        }
        loop {
            let answer = TerminalUser.ask(None, Question { question, choices: choices.clone() }).await.ok()?;
            match answer.trim() {
                ONCE | "y" | "yes" => return Some(HumanDecision::approve(person)),
                FOR_THE_RUN | "a" | "all" => {
                    self.granted.insert(call.gate.clone());
                    return Some(HumanDecision::approve(person));
                }
                REFUSE | "n" | "no" => {
                    let question = "Why not? The entity reads this.".to_owned();
                    let why = TerminalUser.ask(None, Question { question, choices: Vec::new() }).await.ok()?;
                    let why = if why.trim().is_empty() { "no reason was given" } else { why.trim() };
                    return Some(HumanDecision::refuse(person, why));
                }
                "" => return None,
                _ => question = "Please choose 1, 2 or 3; an empty line decides nothing.".to_owned(),
            }
        }
    }

    /// Renders the effect of the call.
    fn render_call(&self, call: &PendingApproval) -> String {
        if let Some(edit) = edit_of(self.places.roots(), call, DIFF_SHOWN_FILE_BYTES_MAX) {
            return cut_lines(&edit.unified());
        }
        match subject_of(&self.places, call) {
            ProposalSubject::Command { arguments, input: None, .. } => cut_lines(&arguments.join("\n")),
            ProposalSubject::Command { input: Some(_), .. }
            | ProposalSubject::File { .. }
            | ProposalSubject::Address { .. }
            | ProposalSubject::Child { .. }
            | ProposalSubject::Money { .. }
            | ProposalSubject::Question { .. }
            | ProposalSubject::Call { .. } => cut(&format!("{}({})", call.gate, call.args), 2_000),
        }
    }
}

/// Returns the warning for a call under the ward `trifecta`, with the remedy if the call is harmless.
pub fn trifecta_warning(call: &PendingApproval) -> Option<String> {
    let remedy = trifecta_remedy(&call.reasons)?;
    Some(format!("It would join private data, untrusted content and a way out; {}.", strip_control(&remedy)))
}

fn cut_lines(text: &str) -> String {
    let all = text.lines().count();
    let mut shown: Vec<String> = text.lines().take(DIFF_SHOWN_LINES).map(|line| cut(line, 200)).collect();
    if all > DIFF_SHOWN_LINES {
        shown.push(format!("({} more lines)", all - DIFF_SHOWN_LINES));
    }
    shown.join("\n")
}
