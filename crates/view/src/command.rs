//! The command line that does what a page does.
//!
//! A person who copies such a line pastes it into a shell, so every word that is not plain is quoted, whatever it holds.

use std::fmt;

use cantrip_service::cantrip::canon::{ApprovalId, EntityId, LoomId, Money, RunId, TurnId};
use cantrip_service::cantrip::loom::RunState;

use crate::ExportFormat;

/// The words of a command, written for a POSIX shell by `Display`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    words: Vec<Word>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Text(String),
    /// The store is named by the environment, because its address holds a password.
    StoreOfEnvironment,
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cantrip")?;
        for word in &self.words {
            match word {
                Word::Text(text) => write!(f, " {}", quoted(text))?,
                Word::StoreOfEnvironment => f.write_str(" \"$CANTRIP_STORE\"")?,
            }
        }
        Ok(())
    }
}

/// Returns a word quoted for a POSIX shell. A character that no argument can hold is left out.
pub fn quoted(word: &str) -> String {
    let word = word.replace('\0', "");
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:@+,%=".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The commands for one store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commands {
    /// None for the store that the binary opens by itself.
    store: Option<String>,
}

/// A command before its store is added.
struct Draft {
    names: Vec<String>,
    positional: Vec<String>,
    options: Vec<String>,
}

impl Draft {
    fn new(names: &[&str]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self { names, positional: Vec::new(), options: Vec::new() }
    }

    fn word(mut self, word: impl ToString) -> Self {
        self.positional.push(word.to_string());
        self
    }

    fn option(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        // A value that begins with a dash would be read as an option.
        if value.starts_with('-') {
            self.options.push(format!("{name}={value}"));
        } else {
            self.options.extend([name.to_owned(), value]);
        }
        self
    }

    fn flag(mut self, name: &str) -> Self {
        self.options.push(name.to_owned());
        self
    }
}

/// The options of a fork on its command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForkWords<'a> {
    pub intent: Option<&'a str>,
    pub fresh: bool,
    pub crystal: Option<&'a str>,
}

/// The options of a cast on its command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CastWords<'a> {
    pub crystal: Option<&'a str>,
    pub budget: Option<Money>,
}

impl Commands {
    /// Returns the commands for a store; none for the one that the binary opens by itself.
    pub fn new(store: Option<String>) -> Self {
        Self { store }
    }

    fn line(&self, draft: Draft) -> CommandLine {
        let Draft { names, positional, options } = draft;
        let mut store = Vec::new();
        if let Some(url) = &self.store {
            store.push(Word::Text("--store".to_owned()));
            store.push(if has_password(url) { Word::StoreOfEnvironment } else { Word::Text(url.clone()) });
        }
        let texts = |words: Vec<String>| words.into_iter().map(Word::Text);
        let is_option_like = positional.iter().any(|word| word.starts_with('-') && word != "-");
        let mut words: Vec<Word> = texts(names).collect();
        if is_option_like {
            words.extend(texts(options));
            words.extend(store);
            words.push(Word::Text("--".to_owned()));
            words.extend(texts(positional));
        } else {
            words.extend(texts(positional));
            words.extend(texts(options));
            words.extend(store);
        }
        CommandLine { words }
    }

    pub fn run_list(&self) -> CommandLine {
        self.line(Draft::new(&["run", "ls"]))
    }

    /// Returns the list of runs in a state; all runs for a state that the list cannot be narrowed to.
    pub fn run_list_in(&self, state: RunState) -> CommandLine {
        let word = match state {
            RunState::Queued => return self.run_list(),
            RunState::Running => "running",
            RunState::Waiting => "waiting",
            RunState::Terminated => "terminated",
            RunState::Truncated => "truncated",
            RunState::Failed => "failed",
        };
        self.line(Draft::new(&["run", "ls"]).option("--state", word))
    }

    pub fn approvals(&self) -> CommandLine {
        self.run_list_in(RunState::Waiting)
    }

    pub fn run_show(&self, run: RunId) -> CommandLine {
        self.line(Draft::new(&["run", "show"]).word(run))
    }

    pub fn thread(&self, of: impl fmt::Display) -> CommandLine {
        self.line(Draft::new(&["loom", "thread"]).word(of))
    }

    pub fn turn_show(&self, turn: TurnId) -> CommandLine {
        self.line(Draft::new(&["loom", "show"]).word(turn))
    }

    /// Returns the command that shows a call: its turn, with every call.
    pub fn call_show(&self, turn: TurnId, _n: usize) -> CommandLine {
        self.turn_show(turn)
    }

    /// Returns the command for what a crystal was sent: the thread up to the turn.
    pub fn turn_sent(&self, turn: TurnId) -> CommandLine {
        self.thread(turn)
    }

    pub fn run_tree(&self, run: RunId) -> CommandLine {
        self.line(Draft::new(&["loom", "tree"]).word(run))
    }

    pub fn entity_tree(&self, entity: EntityId) -> CommandLine {
        self.line(Draft::new(&["loom", "tree"]).word(entity))
    }

    pub fn run_diff(&self, run: RunId) -> CommandLine {
        self.line(Draft::new(&["run", "diff"]).word(run))
    }

    pub fn run_undo(&self, run: RunId, to: TurnId) -> CommandLine {
        self.line(Draft::new(&["run", "undo"]).word(run).option("--to", to))
    }

    pub fn run_records(&self, run: RunId) -> CommandLine {
        self.run_export_as(run, ExportFormat::Journal)
    }

    pub fn run_export(&self, run: RunId) -> CommandLine {
        self.run_export_as(run, ExportFormat::Turns)
    }

    pub fn run_export_as(&self, run: RunId, format: ExportFormat) -> CommandLine {
        let draft = Draft::new(&["loom", "export"]).option("--run", run).option("--format", format.as_str());
        self.line(draft)
    }

    pub fn loom_list(&self) -> CommandLine {
        self.line(Draft::new(&["loom", "ls"]))
    }

    pub fn loom_show(&self, loom: LoomId) -> CommandLine {
        self.line(Draft::new(&["loom", "tree"]).word(loom))
    }

    pub fn compare(&self, a: TurnId, b: TurnId) -> CommandLine {
        self.line(Draft::new(&["loom", "diff"]).word(a).word(b))
    }

    pub fn run_cancel(&self, run: RunId) -> CommandLine {
        self.line(Draft::new(&["run", "cancel"]).word(run))
    }

    pub fn run_resume(&self, run: RunId) -> CommandLine {
        self.line(Draft::new(&["run", "resume"]).word(run))
    }

    pub fn run_continue(&self, run: RunId) -> CommandLine {
        self.run_continue_with(run, None, None)
    }

    pub fn run_continue_with(&self, run: RunId, turns: Option<u64>, budget: Option<Money>) -> CommandLine {
        let mut draft = Draft::new(&["run", "continue"]).word(run);
        if let Some(turns) = turns {
            draft = draft.option("--max-turns", turns);
        }
        if let Some(budget) = budget {
            draft = draft.option("--budget", budget);
        }
        self.line(draft)
    }

    /// Returns the command that approves every waiting call of a run.
    pub fn run_approve(&self, run: RunId) -> CommandLine {
        self.line(Draft::new(&["run", "approve"]).word(run))
    }

    pub fn approve(&self, run: RunId, approval: ApprovalId) -> CommandLine {
        self.line(Draft::new(&["run", "approve"]).word(run).option("--only", approval))
    }

    pub fn run_refuse(&self, run: RunId) -> CommandLine {
        self.line(Draft::new(&["run", "refuse"]).word(run))
    }

    pub fn refuse(&self, run: RunId, approval: ApprovalId, because: &str) -> CommandLine {
        let draft = Draft::new(&["run", "refuse"]).word(run).option("--only", approval);
        self.line(if because.trim().is_empty() { draft } else { draft.option("--because", because) })
    }

    pub fn fork(&self, turn: TurnId) -> CommandLine {
        self.fork_with(turn, &ForkWords::default())
    }

    pub fn fork_with(&self, turn: TurnId, words: &ForkWords<'_>) -> CommandLine {
        let mut draft = Draft::new(&["loom", "fork"]).word(turn);
        if let Some(intent) = words.intent {
            draft = draft.word(intent);
        }
        if words.fresh {
            draft = draft.option("--environment", "fresh");
        }
        if let Some(crystal) = words.crystal {
            draft = draft.option("--crystal", crystal);
        }
        self.line(draft)
    }

    pub fn reward(&self, turn: TurnId) -> CommandLine {
        self.line(Draft::new(&["loom", "reward"]).word(turn).word(1))
    }

    /// Casts the built-in spell.
    pub fn cast(&self, intent: &str) -> CommandLine {
        self.line(Draft::new(&["cast"]).word(intent))
    }

    pub fn cast_spell(&self, spell: &str, intent: &str, words: &CastWords<'_>) -> CommandLine {
        let mut draft = Draft::new(&["cast"]).word(spell).word(intent);
        if let Some(crystal) = words.crystal {
            draft = draft.option("--crystal", crystal);
        }
        if let Some(budget) = words.budget {
            draft = draft.option("--budget", budget);
        }
        self.line(draft)
    }

    /// Shows a spell as it would be cast. A dry run opens no store.
    pub fn spell_show(&self, spell: &str) -> CommandLine {
        Self::default().line(Draft::new(&["cast"]).word(spell).flag("--dry-run"))
    }

    /// Shows the spells of this folder by the looms that they were cast into.
    pub fn spell_list(&self) -> CommandLine {
        self.loom_list()
    }

    /// Explains a code. It needs no store.
    pub fn code_show(&self, code: &str) -> CommandLine {
        Self::default().line(Draft::new(&["codes"]).word(code))
    }
}

/// Returns true if an address of a store holds a password.
fn has_password(url: &str) -> bool {
    if url.split(['?', '&']).any(|part| part.to_ascii_lowercase().starts_with("password=")) {
        return true;
    }
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_unless_it_is_plain() {
        assert_eq!(quoted("run_06cyf9"), "run_06cyf9");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's $HOME \"x\" `y`\n🙂"), "'it'\\''s $HOME \"x\" `y`\n🙂'");
        assert_eq!(quoted("a\0b"), "ab");
        assert_eq!(quoted("~"), "'~'");
    }

    #[test]
    fn an_intent_that_looks_like_an_option_stands_behind_two_dashes() {
        let line = Commands::default().cast_spell("analyst", "--help me", &CastWords::default());
        assert_eq!(line.to_string(), "cantrip cast -- analyst '--help me'");
        let crystal = CastWords { crystal: Some("-x"), budget: None };
        let line = Commands::default().cast_spell("analyst", "why?", &crystal);
        assert_eq!(line.to_string(), "cantrip cast analyst 'why?' --crystal=-x");
    }

    #[test]
    fn the_store_is_named_only_where_it_is_another_one_and_never_with_its_password() {
        assert_eq!(Commands::default().run_list().to_string(), "cantrip run ls");
        let here = Commands::new(Some("sqlite:my store.db".to_owned()));
        assert_eq!(here.loom_list().to_string(), "cantrip loom ls --store 'sqlite:my store.db'");
        for url in ["postgres://ada:hunter2@db/x", "postgres://db/x?user=ada&password=hunter2"] {
            let line = Commands::new(Some(url.to_owned())).run_list().to_string();
            assert_eq!(line, "cantrip run ls --store \"$CANTRIP_STORE\"");
        }
        let open = Commands::new(Some("postgres://ada@db/x".to_owned()));
        assert_eq!(open.run_list().to_string(), "cantrip run ls --store postgres://ada@db/x");
    }
}
