//! The flywheel on a terminal: each step before it is taken, what it found, and its questions.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantrip_reply::Reply;
use cantrip_service::contracts::job::JobProgressView;
use cantrip_service::improve::flywheel::FlowStep;
use cantrip_service::improve::guard::LiveView;
use cantrip_service::wording::short_id;
use cantrip_service::{CompileView, FlowQuestion, FlowUser};
use serde_json::Value;

use crate::approve::can_prompt;
use crate::guard::draw_live;
use crate::interrupt::Presses;
use crate::job::{JobProgressLine, JobState, draw_compile_plan, draw_compile_report};
use crate::present::{BOLD, DIM, say, strip_control};
use crate::user::confirm;
use crate::watch::OutputMode;

/// The user of the flywheel at a terminal, or a program that has agreed before.
#[derive(Debug)]
pub struct FlowTerminal {
    mode: OutputMode,
    /// True to agree to every question without asking.
    agrees: bool,
    line: Option<Arc<JobProgressLine>>,
    is_line_ended: AtomicBool,
}

impl FlowTerminal {
    pub fn new(mode: OutputMode, agrees: bool) -> Self {
        let line = mode.is_drawn().then(|| Arc::new(JobProgressLine::new("compile")));
        Self { mode, agrees, line, is_line_ended: AtomicBool::new(false) }
    }

    /// Returns a watcher that draws the progress of the compile.
    pub fn watcher(&self) -> impl Fn(&JobProgressView) + Send + Sync + use<> {
        let line = self.line.clone();
        move |progress: &JobProgressView| {
            if let Some(line) = &line {
                line.show(JobState::of(progress));
            }
        }
    }

    /// Leaves the last progress on the screen. Later calls change nothing.
    pub fn end_line(&self) {
        if let Some(line) = self.line.as_ref().filter(|_| !self.is_line_ended.swap(true, Ordering::Relaxed)) {
            line.end();
        }
    }

    fn show(&self, text: &str) {
        if self.mode.is_drawn() {
            say(text.trim_end());
        }
    }

    async fn ask(&self, question: String) -> Option<bool> {
        if self.agrees {
            self.show(&format!("{DIM}{question} yes{DIM:#}"));
            return Some(true);
        }
        if !can_prompt(self.mode) {
            return None;
        }
        // Ctrl-C parks a job; at a question it is a no.
        let mut presses = Presses::listen();
        tokio::select! { biased;
            () = presses.next() => Some(false),
            answered = confirm(&question) => answered,
        }
    }
}

impl FlowUser for FlowTerminal {
    fn on_step(&self, step: &FlowStep) {
        let (number, name) = (step.step.number(), step.step.as_str());
        self.show(&format!("{BOLD}{number} {name:<7}{BOLD:#}  {}", strip_control(&step.about)));
    }

    fn on_found(&self, found: &str) {
        self.show(&format!("           {}", strip_control(found)));
    }

    fn on_compiled(&self, view: &CompileView) {
        self.end_line();
        self.show(&draw_compile_report(view));
    }

    fn on_live(&self, live: &LiveView) {
        self.show(&draw_live(live));
    }

    fn agree<'a>(&'a self, question: &'a FlowQuestion<'a>) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        let asked = match question {
            FlowQuestion::Plan(plan) => {
                self.show(&draw_compile_plan(plan));
                "start?".to_owned()
            }
            FlowQuestion::Canary { signature, artifact, percent, reason } => {
                self.show(&format!("           {}", strip_control(reason)));
                format!("serve {} to {percent} % of the callers of {signature}?", short_id(artifact.as_str()))
            }
            FlowQuestion::Write(patch) => {
                self.show(&strip_control(&patch.diff));
                format!("write this to {}?", patch.path.display())
            }
        };
        Box::pin(self.ask(asked))
    }
}

/// Returns a field of a reply's data or of its value.
fn field<'a>(reply: &'a Reply, key: &str) -> Option<&'a Value> {
    reply.data().get(key).or_else(|| reply.value()?.get(key))
}

/// Returns the text of a call of the flywheel for standard output: the offered step, the file that was written, or the
/// artifact that was chosen.
pub fn draw_end(reply: &Reply) -> String {
    let offered = field(reply, "offer").and_then(|offer| offer.get("action"));
    let named = ["path", "canary", "selected"].into_iter().find_map(|key| field(reply, key));
    let line = offered.or(named).and_then(Value::as_str);
    line.map(|line| format!("{line}\n")).unwrap_or_default()
}

/// Returns the command that a reply names as the next one.
pub fn next_command(reply: &Reply) -> Option<String> {
    field(reply, "hint").and_then(Value::as_str).map(strip_control)
}
