//! What a cast shows while it runs: its turns, what is said in them, each gate call and its reply, children indented.

use std::collections::{HashMap, HashSet};
use std::io::Write;

use cantrip::CastReply;
use cantrip::MachineClock;
use cantrip::canon::Clock;
use cantrip::loom::Ending;
use cantrip::spell::Spell;
use cantrip::stream::{
    Emission, Item, ItemId, Options, Origin, Processor, ReplyKind, Status, StreamEvent, ToolCall, TurnEvent, TurnId,
    Upsert,
};
use cantrip_reply::ReplyType;
use tokio::sync::mpsc::Receiver;

use crate::present::{BOLD, DIM, colour, cut, width};

/// Lines of a program, an output or a text that are shown; the loom has them all.
const LINES_SHOWN: usize = 12;

/// Names what is about to run.
pub(crate) fn begin(spell: &Spell, store: &str) {
    say(&format!("{DIM}{} · {} · {} · {store}{DIM:#}", spell.name, spell.crystal, spell.medium));
}

/// Says how it ended and where it is kept.
pub(crate) fn end(cast: &CastReply, store: &str) {
    let Some(outcome) = &cast.outcome else { return };
    let ended = match &outcome.ending {
        Ending::Terminated { .. } => "terminated",
        Ending::Truncated { .. } => "truncated",
    };
    let usage = &outcome.usage;
    let run = cast.run.map(|run| format!(" · {run}")).unwrap_or_default();
    say(&format!(
        "{DIM}{ended} after {} turns · {} tokens in, {} out · {store}{run}{DIM:#}",
        outcome.turns, usage.prompt_tokens, usage.completion_tokens
    ));
}

/// Draws events until nobody sends any more.
pub(crate) async fn follow(mut events: Receiver<StreamEvent>) {
    let clock = MachineClock::new();
    let mut processor = Processor::new(Options { announce_arguments: true, ..Options::default() });
    let mut screen = Screen::default();
    let mut emissions = Vec::new();
    while let Some(event) = events.recv().await {
        // A turn that meets a bound of the viewer goes on unseen; the cast does not notice.
        let _ = processor.process(&event, clock.now(), &mut emissions);
        for emission in emissions.drain(..) {
            screen.draw(&emission);
        }
    }
}

#[derive(Debug, Default)]
struct Screen {
    /// How deep each turn's entity stands.
    depths: HashMap<TurnId, usize>,
    /// Calls that were shown before they were answered.
    asked: HashSet<ItemId>,
    turns: usize,
}

impl Screen {
    fn draw(&mut self, emission: &Emission) {
        match emission {
            Emission::Turn(TurnEvent::Started { turn_id, model_id, child, .. }) => {
                let depth = usize::try_from(child.depth.unwrap_or(0)).unwrap_or(0);
                self.turns += 1;
                self.say(depth, &format!("{BOLD}turn {}{BOLD:#} {DIM}{model_id}{DIM:#}", self.turns));
                self.depths.insert(turn_id.clone(), depth);
            }
            Emission::Turn(TurnEvent::Complete { turn_id, .. }) => {
                self.depths.remove(turn_id);
            }
            Emission::Turn(TurnEvent::Error { turn_id, error_code, error_message, .. }) => {
                let style = colour(ReplyType::Failure);
                let depth = self.depths.remove(turn_id).unwrap_or(0);
                self.say(depth, &format!("  {style}{error_message}{style:#} {DIM}{error_code}{DIM:#}"));
            }
            Emission::Upsert(upsert) => {
                let depth = self.depths.get(&upsert.turn_id).copied().unwrap_or(0);
                self.upsert(depth, upsert);
            }
        }
    }

    /// Texts are shown when they are whole, a call when its arguments are known and again when it is answered.
    fn upsert(&mut self, depth: usize, Upsert { status, item, item_id, .. }: &Upsert) {
        let whole = match status {
            Status::Create | Status::Update => false,
            Status::Complete { .. } | Status::Error { .. } => true,
        };
        // The answer goes to standard output.
        let is_answer = item_id.as_str().ends_with("/answer");
        match item {
            Item::Message { content, origin: Origin::Agent } if whole && !is_answer => {
                self.text(depth, "  ", &content.to_string());
            }
            Item::Thinking { content, .. } if whole => self.text(depth, "  ~ ", &content.to_string()),
            Item::ToolCall(call) => {
                let depth = depth + usize::from(call.parent_item_id.is_some());
                let announced = matches!(status, Status::Update) || whole;
                if announced && self.asked.insert(item_id.clone()) {
                    self.call(depth, call);
                }
                if whole {
                    self.asked.remove(item_id);
                    self.output(depth, call);
                }
            }
            Item::Message { .. } | Item::Thinking { .. } => {}
        }
    }

    fn call(&self, depth: usize, call: &ToolCall) {
        let arguments = serde_json::to_value(&call.arguments).unwrap_or_default();
        match arguments.get("code").and_then(|code| code.as_str()) {
            Some(code) => self.text(depth, "  > ", code),
            None => self.text(depth, "  > ", &format!("{}({arguments})", call.name)),
        }
    }

    fn output(&self, depth: usize, call: &ToolCall) {
        let Some(output) = &call.output else { return };
        if let Some(reply) = &output.reply {
            let style = colour(reply_type(reply.kind));
            self.say(depth, &format!("  {style}<{style:#} {DIM}{}{DIM:#}", reply.code));
        }
        self.text(depth, "    ", &output.text.to_string());
    }

    fn text(&self, depth: usize, before: &str, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        let columns = width().unwrap_or(160).saturating_sub(before.len() + 2 * depth);
        for line in lines.iter().take(LINES_SHOWN) {
            self.say(depth, &format!("{before}{}", cut(line, columns)));
        }
        if lines.len() > LINES_SHOWN {
            self.say(depth, &format!("{DIM}{before}({} more lines){DIM:#}", lines.len() - LINES_SHOWN));
        }
    }

    fn say(&self, depth: usize, line: &str) {
        say(&format!("{:indent$}{line}", "", indent = 2 * depth));
    }
}

const fn reply_type(kind: ReplyKind) -> ReplyType {
    match kind {
        ReplyKind::Success => ReplyType::Success,
        ReplyKind::Invalid => ReplyType::Invalid,
        ReplyKind::Denied => ReplyType::Denied,
        ReplyKind::Failure => ReplyType::Failure,
    }
}

/// A line on standard error; who closed it does not want to know.
fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}
