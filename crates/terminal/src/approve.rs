//! Approval of waiting calls at the terminal, while the cast is still on the screen.
//!
//! This is the same mechanism as `run approve` and `run refuse`: the run waits, a decision is recorded, the run
//! resumes. Here the user is only asked at once, and sees the effect of the call: the diff of a file, the command for a
//! shell.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use cantrip::canon::RunId;
use cantrip::circle::gate::builtin::{Human, Question, resulting_content, target_path};
use cantrip::loom::Actor;
use cantrip::{Cancel, Cantrip, CastReply, HumanDecision, PendingApproval};
use cantrip_service::Service;
use cantrip_spell::{GateKind, Spell};
use serde_json::Value;
use similar::TextDiff;

use crate::limits::{DIFF_SHOWN_FILE_BYTES_MAX, DIFF_SHOWN_LINES};
use crate::present::{cut, say, strip_control};
use crate::user::TerminalUser;
use crate::watch::{OutputMode, Viewer};

const ONCE: &str = "yes, once";
const FOR_THE_RUN: &str = "yes, for the rest of this run";
const REFUSE: &str = "no, and say why";

/// Returns true if a user can see the cast and be asked: it is drawn, and the process has a terminal.
pub fn can_prompt(shows: OutputMode) -> bool {
    shows.is_drawn() && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Returns one sentence for each file that the call would change and that affects later casts.
pub fn dangers(reasons: &Value) -> Vec<String> {
    let text = |reason: &Value, key: &str| reason.get(key).and_then(Value::as_str).map(str::to_owned);
    let said =
        |reason: &Value| Some(format!("It would change {}: {}.", text(reason, "path")?, text(reason, "danger")?));
    reasons.as_array().into_iter().flatten().filter_map(said).collect()
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
    let mut approvals = Approvals { spell, shows: viewer.mode(), granted: BTreeSet::new() };
    while let Some(run) = approvals.decide_pending(service, &reply).await {
        before_resume().await;
        reply = viewer.watch(cancel, service.resume(cantrip, run, cancel)).await;
    }
    reply
}

/// The decisions of the user at the terminal about the calls of one run.
struct Approvals<'a> {
    spell: &'a Spell,
    shows: OutputMode,
    /// The gates that the user approved for the rest of this run.
    granted: BTreeSet<String>,
}

impl Approvals<'_> {
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
        if let Some(command) = call.args.get("command").and_then(Value::as_str).filter(|_| call.gate == "shell") {
            return cut_lines(command);
        }
        match self.difference(call) {
            Some(difference) => cut_lines(&difference),
            None => cut(&format!("{}({})", call.gate, call.args), 2_000),
        }
    }

    /// Returns the diff that the call would make to a file.
    fn difference(&self, call: &PendingApproval) -> Option<String> {
        let path = target_path(&call.gate, &call.args)?;
        let file = self.root(&call.gate)?.join(&path);
        let size = fs::metadata(&file).map_or(0, |found| found.len());
        if size > DIFF_SHOWN_FILE_BYTES_MAX {
            return None;
        }
        let before = fs::read(&file).ok();
        let after = resulting_content(&call.gate, &call.args, before.as_deref())?;
        let (before, after) = (String::from_utf8(before.unwrap_or_default()).ok()?, String::from_utf8(after).ok()?);
        let difference = TextDiff::from_lines(&before, &after);
        Some(difference.unified_diff().header(&path, &path).to_string())
    }

    fn root(&self, name: &str) -> Option<PathBuf> {
        let gate = self.spell.gates.iter().find(|gate| gate.name == name)?;
        let GateKind::Files { root: Some(root), .. } = &gate.kind else { return None };
        Some(self.spell.folder.join(root))
    }
}

/// Returns the warning for a call under the ward `trifecta`, with the remedy if the call is harmless.
pub fn trifecta_warning(call: &PendingApproval) -> Option<String> {
    let reasons = call.reasons.as_array()?;
    let text = |reason: &Value, key: &str| reason.get(key).and_then(Value::as_str).map(str::to_owned);
    // Older records have no remedy, only the line for the spell.
    let remedy = reasons.iter().find_map(|reason| text(reason, "remedy").or_else(|| text(reason, "toml")))?;
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
