//! The settings of a project and of a user: the project's `cantrip.toml`, then the user's `config.toml`.
//!
//! A flag overrides a variable, a variable overrides the project's file, and the project's file overrides the user's.
//! Only the user's file may say where keys are sent, because a folder that somebody else wrote must not redirect a key
//! to another address.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use cantrip::crystal::{LOCAL_ADDRESSES, ModelName, NameFault, Provider};
use cantrip_ds::TraceArchive;
use cantrip_reply::{Refusal, codes};
use toml::{Table, Value};
use url::Url;

use super::config_keys::{Example, KEYS, PROJECT_FILE, fits, suggestion};
use crate::endpoints::{self, Endpoint};
use crate::keys::address;
use crate::limits::TRACE_DAYS_MAX;

/// The largest configuration file that is read.
const BYTES_MAX: u64 = 1 << 20;

/// The merged settings; the project's file overrides the user's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    pub crystal: Option<ModelName>,
    pub store: Option<String>,
    bases: BTreeMap<&'static str, Url>,
    local: Option<Vec<Url>>,
    /// The configured endpoints, by name.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The URL of the store for long traces; `trace_retain_days` is the number of days that they are kept.
    pub trace_store: Option<String>,
    pub trace_retain_days: Option<u64>,
    /// The hosts that receive the trace context.
    pub traceparent_to: Option<Vec<String>>,
}

impl Config {
    /// Loads the configuration that applies to this folder.
    pub fn load(here: &Path) -> Result<Self, Refusal> {
        let project = match project_file(here) {
            Some(path) => read(&path, Whose::Project)?,
            None => Self::default(),
        };
        let own = match own_file().filter(|path| path.is_file()) {
            Some(path) => read(&path, Whose::Own)?,
            None => Self::default(),
        };
        Ok(project.over(own))
    }

    /// Returns the configured address of a provider, if it replaces the provider's default address.
    pub fn base(&self, provider: Provider) -> Option<&Url> {
        self.bases.get(provider.as_str())
    }

    /// Returns the addresses where servers on this machine are looked for.
    pub fn local(&self) -> Vec<Url> {
        let usual = || LOCAL_ADDRESSES.iter().filter_map(|address| address.parse().ok()).collect();
        self.local.clone().unwrap_or_else(usual)
    }

    fn over(self, other: Self) -> Self {
        Self {
            crystal: self.crystal.or(other.crystal),
            store: self.store.or(other.store),
            bases: other.bases.into_iter().chain(self.bases).collect(),
            local: self.local.or(other.local),
            // Only the user's file can have endpoints; a project's file has none.
            endpoints: other.endpoints,
            trace_store: self.trace_store.or(other.trace_store),
            trace_retain_days: self.trace_retain_days.or(other.trace_retain_days),
            traceparent_to: self.traceparent_to.or(other.traceparent_to),
        }
    }
}

/// Loads the configuration that applies to the current folder.
pub fn here() -> Result<Config, Refusal> {
    Config::load(&super::current_folder()?)
}

/// Returns the user's own configuration folder.
pub fn own_folder() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    folder.map(|folder| folder.join("cantrip"))
}

/// Returns the path of the user's own file, as messages show it.
pub fn own_file_shown() -> String {
    own_file().map_or_else(|| "the user's config.toml".to_owned(), |file| file.display().to_string())
}

fn own_file() -> Option<PathBuf> {
    own_folder().map(|folder| folder.join("config.toml"))
}

/// Returns the nearest project file upwards, but not from outside the repository. Outside of any repository only this
/// folder is searched.
fn project_file(here: &Path) -> Option<PathBuf> {
    let root = here.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(here);
    let inside = here.ancestors().take_while(|folder| folder.starts_with(root));
    inside.map(|folder| folder.join(PROJECT_FILE)).find(|file| file.is_file())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Project,
    Own,
}

fn read(path: &Path, whose: Whose) -> Result<Config, Refusal> {
    let shown = path.display().to_string();
    let io = |error: &std::io::Error| Refusal::from(codes::io_failed("read", shown.as_str(), error.to_string()));
    let size = path.metadata().map_err(|error| io(&error))?.len();
    if size > BYTES_MAX {
        return Err(codes::target_unusable(shown, format!("it has more than {BYTES_MAX} bytes")).into());
    }
    let text = std::fs::read_to_string(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::InvalidData {
            return Refusal::from(codes::target_unusable(shown.as_str(), "it is not text"));
        }
        io(&error)
    })?;
    let folder = path.parent().unwrap_or(Path::new("."));
    parse(&text, folder, whose).map_err(|fault| match fault {
        Fault::Text { position, detail } => codes::unparsable(shown, position, detail).into(),
        Fault::Key { key, rule } => {
            let line = line_of(&text, &key).map(|line| format!("line {line}: ")).unwrap_or_default();
            codes::config_invalid(shown, key, format!("{line}{rule}")).into()
        }
    })
}

/// The reason why a configuration file is refused.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Text { position: String, detail: String },
    Key { key: String, rule: String },
}

/// Returns the line of a dotted key.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let parsed = toml::de::DeTable::parse(text).ok()?;
    let (mut table, mut rest, mut start) = (parsed.get_ref(), key, None);
    loop {
        let behind = |name: &str| rest.strip_prefix(name).filter(|behind| behind.is_empty() || behind.starts_with('.'));
        let found = table.iter().find_map(|(name, value)| Some((name.span().start, value, behind(name.get_ref())?)));
        let Some((at, value, behind)) = found else { break };
        start = Some(at);
        match (value.get_ref(), behind.strip_prefix('.')) {
            (toml::de::DeValue::Table(inner), Some(behind)) => (table, rest) = (inner, behind),
            _ => break,
        }
    }
    let before = text.get(..start?)?;
    Some(before.matches('\n').count() + 1)
}

fn parse(text: &str, folder: &Path, whose: Whose) -> Result<Config, Fault> {
    let mut table: Table = text.parse().map_err(|fault: toml::de::Error| {
        let before = fault.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let position = format!("line {}", before.matches('\n').count() + 1);
        Fault::Text { position, detail: fault.message().to_owned() }
    })?;
    let mut config = Config::default();
    if let Some(endpoints) = table.remove("endpoints") {
        if whose == Whose::Project {
            return Err(Fault::Key { key: "endpoints".to_owned(), rule: not_of_a_project() });
        }
        config.endpoints = endpoints::read(&endpoints).map_err(|(key, rule)| Fault::Key { key, rule })?;
    }
    let (table, mut leaves) = (Value::Table(table), Vec::new());
    flatten("", &table, &mut leaves);
    for (key, value) in leaves {
        settle(&mut config, &key, value, folder, whose)?;
    }
    Ok(config)
}

/// Returns the reason why a project's file may not have a key that only the user's own file may have.
fn not_of_a_project() -> String {
    format!("a project's file does not decide what is sent where: write it into {}", own_file_shown())
}

/// Collects every value with its dotted key. An empty table counts as a value, so that no written key is ignored.
fn flatten<'a>(key: &str, value: &'a Value, leaves: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Table(table) if key.is_empty() || !table.is_empty() => {
            for (name, value) in table {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, value, leaves);
            }
        }
        Value::Table(_)
        | Value::String(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_) => leaves.push((key.to_owned(), value)),
    }
}

fn settle(config: &mut Config, key: &str, value: &Value, folder: &Path, whose: Whose) -> Result<(), Fault> {
    let fault = |rule: String| Fault::Key { key: key.to_owned(), rule };
    let Some(row) = KEYS.iter().find(|row| fits(row.name, key)) else {
        return Err(fault(format!("unknown key{}", suggestion(key))));
    };
    if row.only_own && whose == Whose::Project {
        return Err(fault(not_of_a_project()));
    }
    if let (Example::Number(_), Value::Integer(number)) = (row.example, value) {
        let days = u64::try_from(*number).ok().filter(|days| (1..=TRACE_DAYS_MAX).contains(days));
        let days = days.ok_or_else(|| fault(format!("it is a number of days from 1 to {TRACE_DAYS_MAX}")))?;
        config.trace_retain_days = Some(days);
        return Ok(());
    }
    let Some(texts) = texts(value, row.example) else {
        let kind = match row.example {
            Example::Text(_) => "text",
            Example::Texts(_) => "list of texts",
            Example::Number(_) | Example::Tokens(_) => "number",
            Example::Price(_) => "price",
        };
        return Err(fault(format!("this is a {kind}, as in {} = {}", row.name, row.example.toml())));
    };
    let provider = key.split('.').nth(1);
    match (Provider::ALL.into_iter().find(|known| provider == Some(known.as_str())), texts.as_slice()) {
        (Some(provider), [text]) => {
            config.bases.insert(provider.as_str(), address(text).map_err(fault)?);
        }
        (None, [text]) if key == "crystal" => {
            config.crystal = Some(text.parse().map_err(|wrong: NameFault| fault(wrong.to_string()))?);
        }
        (None, [text]) if key == "store" => config.store = Some(from(folder, text)),
        (None, [text]) if key == "trace.store" => {
            let base = if text.contains("://") { (*text).to_owned() } else { folder.join(text).display().to_string() };
            TraceArchive::at(&base).map_err(|wrong| fault(wrong.to_string()))?;
            config.trace_store = Some(base);
        }
        (None, texts) if key == "telemetry.traceparent_to" => {
            config.traceparent_to = Some(texts.iter().map(|text| (*text).to_owned()).collect());
        }
        (Some(_) | None, texts) => {
            let addresses = texts.iter().map(|text| address(text)).collect::<Result<_, _>>();
            config.local = Some(addresses.map_err(fault)?);
        }
    }
    Ok(())
}

/// Returns the texts of a value if it has the same type as its example.
fn texts(value: &Value, example: Example) -> Option<Vec<&str>> {
    match (example, value) {
        (Example::Text(_), Value::String(text)) => Some(vec![text]),
        (Example::Texts(_), Value::Array(list)) => list.iter().map(Value::as_str).collect(),
        (Example::Text(_) | Example::Texts(_) | Example::Number(_) | Example::Tokens(_) | Example::Price(_), _) => None,
    }
}

/// Resolves the path of a store URL against this folder.
fn from(folder: &Path, url: &str) -> String {
    match url.split_once(':') {
        Some((scheme @ ("sqlite" | "jsonl"), path)) if !path.is_empty() && path != ":memory:" => {
            format!("{scheme}:{}", folder.join(path).display())
        }
        Some(_) | None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_keys::schema;

    fn parsed(text: &str, whose: Whose) -> Result<Config, Fault> {
        parse(text, Path::new("/project"), whose)
    }

    #[test]
    fn every_key_of_the_table_is_read_and_stands_in_the_schema() {
        let schema = schema();
        for row in &KEYS {
            let name = row.name.replace("<provider>", "gemini").replace("<endpoint>", "groq");
            let config = parsed(&format!("{name} = {}", row.example.toml()), Whose::Own).expect(row.name);
            assert_ne!(config, Config::default(), "{name} settles something");
            let pointer = name.split('.').fold(String::new(), |path, part| match part {
                "groq" => format!("{path}/additionalProperties"),
                part => format!("{path}/properties/{part}"),
            });
            assert!(schema.pointer(&pointer).is_some(), "{pointer}");
            let otherwise = if matches!(row.example, Example::Number(_)) { "'three'" } else { "3" };
            let faulty = parsed(&format!("{name} = {otherwise}"), Whose::Own);
            assert!(matches!(faulty, Err(Fault::Key { .. })), "{name}");
        }
    }

    #[test]
    fn a_project_does_not_say_where_keys_are_sent() {
        let text = "[providers.anthropic]\nbase_url = \"https://elsewhere.example\"\n";
        let Err(Fault::Key { key, rule }) = parsed(text, Whose::Project) else { panic!("refused") };
        assert_eq!(key, "providers.anthropic.base_url");
        assert!(rule.contains("config.toml"), "{rule}");
        let own = parsed(text, Whose::Own).expect("the user's own may");
        assert_eq!(own.base(Provider::Anthropic).map(Url::as_str), Some("https://elsewhere.example/"));
    }

    #[test]
    fn a_project_names_no_endpoint_and_every_fault_has_its_line() {
        let text = "store = 'memory:'\n\n[endpoints.mine]\nurl = 'https://elsewhere.example/v1'\nwire = 'grpc'\n";
        let Err(Fault::Key { key, rule }) = parsed(text, Whose::Project) else { panic!("refused") };
        assert_eq!((key.as_str(), line_of(text, &key)), ("endpoints", Some(3)));
        assert!(rule.contains("config.toml"), "{rule}");
        for (key, line) in [("endpoints.mine.wire", 5), ("endpoints.mine", 3), ("store", 1), ("endpoints.mine.gone", 3)]
        {
            assert_eq!(line_of(text, key), Some(line), "{key}");
        }
        assert_eq!(line_of(text, "elsewhere"), None);
        assert_eq!(line_of("a.b.c = 1\n'd.e' = 2\n", "d.e"), Some(2));
    }

    #[test]
    fn what_nobody_knows_is_refused_with_the_nearest_name() {
        for (text, says) in [
            ("cristal = 'ollama/m'", "did you mean crystal?"),
            ("[providers.antropic]\nbase_url = 'https://a.example'", "did you mean providers.anthropic.base_url?"),
            ("[providers.anthropic]", "known are"),
            ("something = {}", "known are"),
            ("crystal = 'no body/m'", "no body"),
            ("[providers.openai]\nbase_url = 'https://me:key@a.example'", "a key does not belong"),
        ] {
            let fault = parsed(text, Whose::Own).expect_err(text);
            assert!(format!("{fault:?}").contains(says), "{text}: {fault:?}");
        }
        let fault = parsed("crystal = \n", Whose::Own).expect_err("no TOML");
        assert!(matches!(fault, Fault::Text { position, .. } if position == "line 1"));
    }

    #[test]
    fn traces_have_a_place_and_a_time_that_can_be() {
        let config = parsed("[trace]\nstore = 'kept/traces'\nretain_days = 7", Whose::Own).expect("sound");
        assert_eq!(config.trace_store.as_deref(), Some("/project/kept/traces"));
        assert_eq!(config.trace_retain_days, Some(7));
        for (text, says) in [
            ("trace.retain_days = 0", "from 1 to"),
            ("trace.retain_days = -1", "from 1 to"),
            ("trace.retain_days = 1000000", "from 1 to"),
            ("trace.store = 'ftp://host/traces'", "neither a folder nor"),
        ] {
            let fault = parsed(text, Whose::Own).expect_err(text);
            assert!(format!("{fault:?}").contains(says), "{text}: {fault:?}");
        }
        let fault = parsed("trace.store = '/elsewhere'", Whose::Project).expect_err("not a project's to say");
        assert!(matches!(fault, Fault::Key { key, .. } if key == "trace.store"));
    }

    #[test]
    fn paths_of_a_store_begin_in_the_folder_of_the_file() {
        for (url, from) in [
            ("sqlite:kept/loom.db", "sqlite:/project/kept/loom.db"),
            ("jsonl:/elsewhere", "jsonl:/elsewhere"),
            ("memory:", "memory:"),
            ("postgres://host/db", "postgres://host/db"),
        ] {
            let config = parsed(&format!("store = '{url}'"), Whose::Project).expect("sound");
            assert_eq!(config.store.as_deref(), Some(from));
        }
    }

    #[test]
    fn the_projects_file_is_the_nearest_inside_the_repository() {
        let outside = tempfile::tempdir().expect("a folder");
        let (root, deep) = (outside.path().join("repository"), outside.path().join("repository/a/b"));
        std::fs::create_dir_all(&deep).expect("folders");
        std::fs::write(outside.path().join(PROJECT_FILE), "").expect("written");
        assert_eq!(project_file(&deep), None, "without a repository only this folder counts");
        std::fs::create_dir(root.join(".git")).expect("a folder");
        assert_eq!(project_file(&deep), None, "what lies outside is somebody else's");
        std::fs::write(root.join(PROJECT_FILE), "").expect("written");
        assert_eq!(project_file(&deep), Some(root.join(PROJECT_FILE)));
        std::fs::write(root.join("a").join(PROJECT_FILE), "").expect("written");
        assert_eq!(project_file(&deep), Some(root.join("a").join(PROJECT_FILE)));
    }
}
