//! A run to take away: as lines for programs, or as a text for people.

use std::fmt::Write as _;

use cantrip_service::cantrip::canon::{EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::export::{Redaction as LineRedaction, chat, export_run_journal, turn_line};
use cantrip_service::cantrip::loom::{
    AnyLoom, Error, Journal, Kind, Loom, Overview, Record, Seq, Settlement, Turn, WindowPlace, limits::WINDOW_TURNS_MAX,
};
use cantrip_service::cantrip::reply::Refusal;
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::Value;

use crate::redact::Redaction;
use crate::thread::newest_sequence;
use crate::{RunHead, TurnItem, Views, item_text, stored, turn_items, value_text};

/// The lines of an export, each with its line feed. They are made when they are asked for, so a run of any length needs
/// the memory of one window.
pub type ExportLines<'a> = BoxStream<'a, Result<String, Refusal>>;

/// The form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// One line of JSON per turn, children included.
    Turns,
    /// Every record and body of the run.
    Journal,
    /// One line of JSON per thread: its messages.
    Chat,
    /// The root's thread as a text.
    Markdown,
}

impl ExportFormat {
    pub const ALL: [Self; 4] = [Self::Turns, Self::Journal, Self::Chat, Self::Markdown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Journal => "journal",
            Self::Chat => "chat",
            Self::Markdown => "markdown",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == text)
    }

    /// Returns the ending of a file with such an export.
    pub const fn file_ending(self) -> &'static str {
        match self {
            Self::Turns | Self::Journal | Self::Chat => "jsonl",
            Self::Markdown => "md",
        }
    }

    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Turns | Self::Journal | Self::Chat => "application/jsonl; charset=utf-8",
            Self::Markdown => "text/markdown; charset=utf-8",
        }
    }
}

impl<'a> Views<'a> {
    /// Exports a run. Secrets and personal data are taken out, unless these views show secrets.
    pub async fn export(&self, run: RunId, format: ExportFormat) -> Result<ExportLines<'a>, Refusal> {
        self.service.own_run(run).await?;
        let redaction = match &self.redactor {
            Some(redactor) => LineRedaction::On(Box::new(redactor.clone().personal_data(true))),
            None => LineRedaction::Off,
        };
        let lines = match format {
            ExportFormat::Turns => turn_lines(self.loom(), run, redaction),
            ExportFormat::Chat => self.chat_lines(run, redaction).await?,
            ExportFormat::Journal => export_run_journal(self.loom(), run, redaction).map_err(stored).boxed(),
            ExportFormat::Markdown => {
                let redactor = self.redactor.clone().map(|redactor| redactor.personal_data(true));
                return Views { service: self.service, redactor }.markdown(run).await;
            }
        };
        Ok(lines.map_ok(|line| line + "\n").boxed())
    }

    /// Returns a line for the thread of each entity of the run.
    async fn chat_lines(&self, run: RunId, redaction: LineRedaction) -> Result<ExportLines<'a>, Refusal> {
        let threads = self.loom().run_threads(run).await.map_err(stored)?;
        // The root may have gone on in a later run.
        let own = self.service.leaf_of_run(run).await?;
        let root = self.service.own_run(run).await?.entity_id;
        let leaves = threads.into_iter().filter_map(move |thread| {
            let leaf = if Some(thread.entity_id) == root { own.or(thread.leaf) } else { thread.leaf };
            leaf.map(|leaf| (thread.entity_id, leaf))
        });
        let loom = self.loom();
        let lines = stream::iter(leaves).then(move |(entity, leaf)| {
            let redaction = redaction.clone();
            async move { chat_line(loom, entity, leaf, &redaction).await }
        });
        Ok(lines.map_err(stored).boxed())
    }

    /// Returns the thread of a run's root as a text, a window at a time.
    async fn markdown(self, run: RunId) -> Result<ExportLines<'a>, Refusal> {
        let head = self.head(run, None).await?;
        let opening = stream::iter([Ok(markdown_head(&head))]);
        let Some(leaf) = head.leaf else { return Ok(opening.boxed()) };
        let answer = head.cast.and_then(|cast| cast.outcome?.ending.result().map(value_text));
        let ending = answer.map(|answer| Ok(format!("\n## Answer\n\n{answer}\n")));
        let turns = stream::try_unfold((self, Some(0)), move |(views, after)| async move {
            let Some(after) = after else { return Ok(None) };
            let read = views.loom().window(leaf, WindowPlace::After(after), WINDOW_TURNS_MAX).await;
            let window = read.map_err(stored)?;
            let Some(newest) = newest_sequence(&window) else { return Ok(None) };
            let mut text = String::new();
            for turn in window.turns {
                markdown_turn(&mut text, &Redaction::of(&views).turn(turn));
            }
            Ok::<_, Refusal>(Some((text, (views, (newest < window.last).then_some(newest)))))
        });
        Ok(opening.chain(turns).chain(stream::iter(ending)).boxed())
    }
}

fn turn_lines(loom: &AnyLoom, run: RunId, redaction: LineRedaction) -> ExportLines<'_> {
    let closed = loom.read(run, Seq::START).try_filter_map(|record| ready(closed_turn(&record)));
    let lines = closed.and_then(move |turn| {
        let redaction = redaction.clone();
        async move {
            let turn = loom.turn(turn).await?;
            let medium = loom.entity(turn.entity_id).await?.entity.medium;
            line_text(&turn_line(&turn, &medium, &redaction)?)
        }
    });
    lines.map_err(stored).boxed()
}

async fn chat_line(loom: &AnyLoom, entity: EntityId, leaf: TurnId, redaction: &LineRedaction) -> Result<String, Error> {
    let made = loom.entity(entity).await?;
    let roots = loom.roots(made.loom_id).await?;
    let root = roots.iter().find(|root| root.cantrip_id == made.entity.cantrip_id);
    let prompt = root.and_then(|root| root.cantrip.call.system_prompt.as_deref());
    line_text(&chat(&loom.thread(leaf).await?, prompt, redaction)?)
}

/// Returns the turn that a record closes.
fn closed_turn(record: &Record) -> Result<Option<TurnId>, Error> {
    if record.kind != Kind::Turn {
        return Ok(None);
    }
    Ok(record.event()?.as_turn().map(|closed| closed.turn_id))
}

fn line_text(line: &Value) -> Result<String, Error> {
    serde_json::to_string(line).map_err(|source| Error::Misread { what: "a line of the export".to_owned(), source })
}

fn markdown_head(head: &RunHead) -> String {
    let summary = &head.summary;
    let intent = head.cast.as_ref().map(|cast| cast.intent.text()).or(summary.intent.clone());
    let mut text = format!("# {}\n\n", one_line(&intent.unwrap_or_else(|| head.run.run_id.to_string())));
    let _ = writeln!(text, "- run: {}", head.run.run_id);
    if let Some(spell) = &summary.spell {
        let _ = writeln!(text, "- spell: {}", one_line(spell));
    }
    if let Some(crystal) = &summary.crystal {
        let _ = writeln!(text, "- crystal: {}", one_line(crystal));
    }
    let _ = writeln!(text, "- turns: {}, and {} in {} children", summary.turns, summary.child_turns, summary.children);
    if let Some(cost) = summary.cost {
        let _ = writeln!(text, "- cost: {cost}");
    }
    let _ = writeln!(text, "- begun: {}", summary.created_at);
    text
}

fn markdown_turn(text: &mut String, turn: &Turn) {
    let _ = writeln!(text, "\n## Turn {}\n\n{} · {}\n", turn.sequence, turn.id, turn.metadata.timestamp);
    if let Some(intent) = &turn.intent {
        let _ = writeln!(text, "{}\n", quote(&intent.text()));
    }
    for item in turn_items(turn) {
        markdown_item(text, &item);
    }
}

fn markdown_item(text: &mut String, item: &TurnItem<'_>) {
    let _ = match item {
        TurnItem::Thinking(thought) => writeln!(text, "{}\n", quote(thought)),
        TurnItem::Said(said) => writeln!(text, "{said}\n"),
        TurnItem::Program(program) => {
            if let Some(code) = program.code {
                let _ = writeln!(text, "{}\n", fenced(program.medium.unwrap_or_default(), code));
            }
            let printed = item_text(item);
            if printed.is_empty() { Ok(()) } else { writeln!(text, "{}\n", fenced("text", &printed)) }
        }
        TurnItem::Asked(call) => writeln!(text, "**{}** was not begun.\n", one_line(&call.gate)),
        TurnItem::Call(record) => {
            let reply = match &record.settlement {
                Settlement::Delegated => "delegated".to_owned(),
                Settlement::Settled(settled) => format!("{} {}", settled.reply.reply_type.word(), settled.reply.code),
            };
            let _ = writeln!(text, "**{}** {reply}\n", one_line(&record.gate));
            let _ = writeln!(text, "{}\n", fenced("json", &value_text(&record.args)));
            let result = item_text(item);
            if result.is_empty() { Ok(()) } else { writeln!(text, "{}\n", fenced("text", &result)) }
        }
    };
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn quote(text: &str) -> String {
    text.lines().map(|line| format!("> {line}")).collect::<Vec<_>>().join("\n")
}

/// Returns a text between fences that are longer than any run of backticks in it.
fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|char| char != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    format!("{fence}{}\n{}\n{fence}", one_line(language), text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_the_backticks_inside() {
        assert_eq!(fenced("text", "a"), "```text\na\n```");
        assert_eq!(fenced("", "a ```` b"), "`````\na ```` b\n`````");
    }

    #[test]
    fn every_format_is_found_by_its_name() {
        for format in ExportFormat::ALL {
            assert_eq!(ExportFormat::parse(format.as_str()), Some(format));
        }
        assert_eq!(ExportFormat::parse("page"), None);
    }
}
