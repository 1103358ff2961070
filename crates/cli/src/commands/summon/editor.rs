//! The line editor of a terminal session: lines and blocks, with a history.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anstream::{AutoStream, ColorChoice};
use cantrip::canon::replace_known_secrets;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, ColorMode, CompletionType, Config, Context, Editor, Helper};

use super::command::NAMES;
use super::entry;
use super::input::ReadResult;
use crate::limits::HISTORY_ENTRIES_MAX;
use cantrip_terminal::present::BOLD;

/// The file of the input history, in the folder of the store.
const HISTORY: &str = "history";

pub(super) struct LineEditor {
    editor: Editor<Aid, FileHistory>,
    prompt: String,
    history: Option<PathBuf>,
}

impl LineEditor {
    /// Opens the editor; None if there is no terminal.
    pub(super) fn new(name: &str, beside: Option<&Path>) -> Option<Self> {
        let colours = match AutoStream::choice(&std::io::stderr()) {
            ColorChoice::Never => ColorMode::Disabled,
            ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => ColorMode::Enabled,
        };
        let config = Config::builder()
            // Standard output is for answers, so the editor writes to the terminal itself.
            .behavior(Behavior::PreferTerm)
            .bracketed_paste(true)
            .completion_type(CompletionType::List)
            .color_mode(colours)
            .max_history_size(HISTORY_ENTRIES_MAX)
            .and_then(|config| config.history_ignore_dups(true))
            .ok()?
            .build();
        let mut editor = Editor::with_config(config).ok()?;
        editor.set_helper(Some(Aid));
        let history = beside.map(|beside| beside.join(HISTORY));
        if let Some(history) = &history
            && let Err(error) = editor.load_history(history)
        {
            tracing::debug!(%error, "there is no history yet");
        }
        Some(Self { editor, prompt: format!("{name}> "), history })
    }

    /// Waits for the next entry.
    pub(super) fn entry(&mut self) -> ReadResult {
        match self.editor.readline(&self.prompt) {
            Ok(typed) => {
                self.remember(&typed);
                ReadResult::Entry(typed)
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => ReadResult::End,
            Err(error) => ReadResult::Failed(error.to_string()),
        }
    }

    /// Appends the entry to the history file at once, so that it is kept even if the process is killed.
    fn remember(&mut self, typed: &str) {
        if typed.trim().is_empty() {
            return;
        }
        // A pasted key is not written to a file.
        let added = self.editor.add_history_entry(replace_known_secrets(typed.trim_end()));
        if let (Ok(true), Some(history)) = (added, &self.history)
            && let Err(error) = self.editor.append_history(history)
        {
            tracing::warn!(%error, "the input history could not be written");
        }
    }
}

/// The callbacks of the editor.
struct Aid;

impl Helper for Aid {}

impl Validator for Aid {
    fn validate(&self, typed: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        if entry::is_open(typed.input()) { Ok(ValidationResult::Incomplete) } else { Ok(ValidationResult::Valid(None)) }
    }
}

impl Completer for Aid {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = line.get(..pos).filter(|begun| begun.starts_with('/') && !begun.contains(char::is_whitespace));
        let Some(begun) = begun else { return Ok((0, Vec::new())) };
        Ok((0, NAMES.iter().filter(|name| name.starts_with(begun)).map(|name| format!("{name} ")).collect()))
    }
}

impl Hinter for Aid {
    type Hint = String;
}

impl Highlighter for Aid {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        Cow::Owned(format!("{BOLD}{prompt}{BOLD:#}"))
    }
}
