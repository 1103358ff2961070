//! The effect of a call that waits for a person, as data.
//!
//! Every surface shows the same thing: the difference of a file, the arguments of a program, an address with its host.
//! A difference is made against the file as it is now, because that is the file that the call would change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cantrip_service::cantrip::PendingApproval;
use cantrip_service::cantrip::canon::Timestamp;
use cantrip_service::cantrip::circle::gate::builtin::{Question, resulting_content, target_path};
use cantrip_service::cantrip::circle::gate::canonical_name;
use cantrip_service::{ChangeKind, DiskFile, GateRoots, unified_diff};
use cantrip_spell::{GateKind, Spell};
use serde_json::{Map, Value};
use url::{Host, Url};

use crate::ProposalSubject;
use crate::limits::PROPOSAL_FILE_BYTES_MAX;

/// The folders, programs and addresses that the gates of a spell use.
#[derive(Debug, Clone, Default)]
pub struct CallPlaces {
    roots: GateRoots,
    /// The folder of the spell, in which its programs run.
    folder: PathBuf,
    programs: BTreeMap<String, Vec<String>>,
    /// The working folder of a shell.
    shells: BTreeMap<String, PathBuf>,
    /// The method and the address of an endpoint, with places such as `{city}`.
    endpoints: BTreeMap<String, (String, String)>,
}

impl CallPlaces {
    pub fn of_spell(spell: &Spell) -> Self {
        let roots = GateRoots::from_spell(spell);
        let mut places = Self { roots, folder: spell.folder.clone(), ..Self::default() };
        for gate in &spell.gates {
            let name = gate.name.clone();
            match &gate.kind {
                GateKind::Command { command, .. } => drop(places.programs.insert(name, command.clone())),
                GateKind::Shell(shell) => drop(places.shells.insert(name, spell.folder.join(&shell.root))),
                GateKind::Endpoint(endpoint) => {
                    drop(places.endpoints.insert(name, (endpoint.method.clone(), endpoint.url.clone())));
                }
                GateKind::Plain
                | GateKind::Delegation { .. }
                | GateKind::Predict { .. }
                | GateKind::Files { .. }
                | GateKind::Fetch { .. }
                | GateKind::Server(_) => {}
            }
        }
        places
    }

    /// Returns places of which only the roots of file gates are known.
    pub fn of_roots(roots: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        Self { roots: GateRoots::from_folders(roots), ..Self::default() }
    }

    pub fn roots(&self) -> &GateRoots {
        &self.roots
    }
}

/// The change that a call would make to a text file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEdit {
    /// The path below the root of the gate.
    pub path: String,
    pub file: PathBuf,
    /// None if the file does not exist.
    pub before: Option<String>,
    pub after: String,
    /// The time at which the file was last changed.
    pub modified: Option<Timestamp>,
}

impl FileEdit {
    /// Returns the difference in the format of `diff -u`; empty if the call would change nothing.
    pub fn unified(&self) -> String {
        let touched = if self.before.is_some() { ChangeKind::Changed } else { ChangeKind::Created };
        unified_diff(&self.path, touched, self.before.as_deref().unwrap_or_default(), &self.after)
    }
}

/// Returns the change that a call of `write` or `edit` would make. None for another gate, an unknown root, a file
/// outside of it, a file of more than `bytes_max` bytes, and bytes that are no text.
pub fn edit_of(roots: &GateRoots, call: &PendingApproval, bytes_max: u64) -> Option<FileEdit> {
    let path = target_path(&call.gate, &call.args)?;
    let (before, modified) = match roots.file(&call.gate, &path, bytes_max)? {
        DiskFile::Nothing => (None, None),
        DiskFile::File { bytes, modified } => (Some(bytes), modified),
        DiskFile::Hidden => return None,
    };
    let after = String::from_utf8(resulting_content(&call.gate, &call.args, before.as_deref())?).ok()?;
    let before = match before {
        Some(before) => Some(String::from_utf8(before).ok()?),
        None => None,
    };
    let file = roots.folder(&call.gate)?.join(&path);
    Some(FileEdit { path, file, before, after, modified })
}

/// Returns what a call is about. A call whose effect cannot be told is shown with all its arguments.
pub fn subject_of(places: &CallPlaces, call: &PendingApproval) -> ProposalSubject {
    known_subject(places, call)
        .unwrap_or_else(|| ProposalSubject::Call { gate: call.gate.clone(), arguments: call.args.clone() })
}

fn known_subject(places: &CallPlaces, call: &PendingApproval) -> Option<ProposalSubject> {
    if let Some(command) = places.programs.get(&call.gate) {
        let folder = folder_text(&places.folder);
        return Some(ProposalSubject::Command { arguments: command.clone(), folder, input: Some(call.args.clone()) });
    }
    if let Some((method, template)) = places.endpoints.get(&call.gate) {
        let (url, rest) = fill_template(template, call.args.as_object()?);
        return address(method, &url, rest);
    }
    match canonical_name(&call.gate) {
        "write" | "edit" => file_subject(places, call),
        "shell" => shell_subject(places, call),
        "fetch" => fetch_subject(&call.args),
        "call_agent" | "call_agent_batch" => child_subject(&call.args),
        "ask_human" => {
            let Question { question, choices } = serde_json::from_value(call.args.clone()).ok()?;
            Some(ProposalSubject::Question { text: question, choices })
        }
        _ => None,
    }
}

fn folder_text(folder: &Path) -> String {
    folder.display().to_string()
}

fn file_subject(places: &CallPlaces, call: &PendingApproval) -> Option<ProposalSubject> {
    if let Some(edit) = edit_of(&places.roots, call, PROPOSAL_FILE_BYTES_MAX) {
        let difference = Some(edit.unified());
        return Some(ProposalSubject::File { path: edit.path, difference, changed_since: None });
    }
    // The file of an edit was deleted: the call would change nothing.
    let path = target_path(&call.gate, &call.args)?;
    match places.roots.file(&call.gate, &path, PROPOSAL_FILE_BYTES_MAX)? {
        DiskFile::Nothing if call.gate == "edit" => {
            Some(ProposalSubject::File { path, difference: Some(String::new()), changed_since: None })
        }
        DiskFile::Nothing | DiskFile::File { .. } | DiskFile::Hidden => None,
    }
}

/// Returns the difference as it was asked for, with the bytes that the run had left in the file. Without them only the
/// texts that the call itself names can be compared.
pub(crate) fn asked_difference(call: &PendingApproval, left: Option<&[u8]>) -> Option<String> {
    let path = target_path(&call.gate, &call.args)?;
    let argument = |key: &str| call.args.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let known = left.and_then(|left| {
        let after = String::from_utf8(resulting_content(&call.gate, &call.args, Some(left))?).ok()?;
        Some((std::str::from_utf8(left).ok()?.to_owned(), after))
    });
    let (before, after) = match known {
        Some(texts) => texts,
        None if call.gate == "edit" => (argument("old"), argument("new")),
        None => (String::new(), argument("content")),
    };
    Some(unified_diff(&path, ChangeKind::Changed, &before, &after))
}

fn shell_subject(places: &CallPlaces, call: &PendingApproval) -> Option<ProposalSubject> {
    let command = call.args.get("command").and_then(Value::as_str)?.to_owned();
    let folder = places.shells.get(&call.gate).map(|folder| folder_text(folder)).unwrap_or_default();
    Some(ProposalSubject::Command { arguments: vec![command], folder, input: None })
}

fn fetch_subject(args: &Value) -> Option<ProposalSubject> {
    let url = args.get("url").and_then(Value::as_str)?;
    let method = args.get("method").and_then(Value::as_str).unwrap_or("GET").to_ascii_uppercase();
    let mut rest = args.as_object()?.clone();
    rest.remove("url");
    rest.remove("method");
    address(&method, url, rest)
}

fn address(method: &str, url: &str, rest: Map<String, Value>) -> Option<ProposalSubject> {
    let ascii = Url::parse(url).ok()?.host_str()?.to_owned();
    let foreign = ascii.split('.').any(|label| label.starts_with("xn--"));
    let host = written_host(url, &ascii).filter(|_| foreign).unwrap_or_else(|| ascii.clone());
    Some(ProposalSubject::Address {
        method: method.to_owned(),
        url: url.to_owned(),
        host,
        punycode: foreign.then_some(ascii),
        input: (!rest.is_empty()).then_some(Value::Object(rest)),
    })
}

/// Returns the host in the letters of the address, if it is the one that would be reached: an address can be written so
/// that another part of it looks like the host.
fn written_host(url: &str, ascii: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '\\', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host.split(':').next()?;
    match Host::parse(host).ok()? {
        Host::Domain(domain) if domain == ascii => Some(host.to_owned()),
        Host::Domain(_) | Host::Ipv4(_) | Host::Ipv6(_) => None,
    }
}

/// Fills the places of an address as the endpoint does. Returns the arguments that it does not use.
fn fill_template(template: &str, args: &Map<String, Value>) -> (String, Map<String, Value>) {
    let (mut url, mut rest) = (template.to_owned(), args.clone());
    for (name, value) in args {
        let place = format!("{{{name}}}");
        if template.contains(&place) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            url = url.replace(&place, &percent_encoded(&text));
            rest.remove(name);
        }
    }
    (url, rest)
}

/// Percent-encodes everything except letters, digits and `-._~`.
fn percent_encoded(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(letter).collect()
}

fn child_subject(args: &Value) -> Option<ProposalSubject> {
    let intent = |request: &Value| match request {
        Value::String(intent) => Some(intent.clone()),
        Value::Object(fields) => fields.get("intent").and_then(Value::as_str).map(str::to_owned),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    };
    let intents: Option<Vec<String>> = match args.get("requests").and_then(Value::as_array) {
        Some(requests) => requests.iter().map(intent).collect(),
        None => intent(args).map(|intent| vec![intent]),
    };
    Some(ProposalSubject::Child { spell: None, intents: intents? })
}

/// Returns one sentence for each file that the call would change and that affects later casts.
pub fn danger_sentences(reasons: &Value) -> Vec<String> {
    let sentence = |(path, danger): (String, String)| format!("It would change {path}: {danger}.");
    dangers(reasons).map(sentence).collect()
}

/// Returns the protected files that the call would change, each with the reason of its protection.
pub(crate) fn dangers(reasons: &Value) -> impl Iterator<Item = (String, String)> + '_ {
    let reasons = reasons.as_array().map(Vec::as_slice).unwrap_or_default();
    reasons.iter().filter_map(|reason| Some((text_of(reason, "path")?, text_of(reason, "danger")?)))
}

/// Returns the change to the spell by which a call that completes the trifecta would no longer count as risky. None
/// unless the ward `trifecta` requires the approval.
pub fn trifecta_remedy(reasons: &Value) -> Option<String> {
    let reasons = reasons.as_array()?;
    // Older records have no remedy, only the line for the spell.
    reasons.iter().find_map(|reason| text_of(reason, "remedy").or_else(|| text_of(reason, "toml")))
}

pub(crate) fn text_of(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host_of(url: &str) -> (String, Option<String>) {
        let subject = fetch_subject(&json!({ "url": url }));
        let Some(ProposalSubject::Address { host, punycode, .. }) = subject else { panic!("{url}: {subject:?}") };
        (host, punycode)
    }

    #[test]
    fn the_host_that_would_be_reached_is_named_whatever_the_address_looks_like() {
        assert_eq!(host_of("https://example.com/a"), ("example.com".to_owned(), None));
        assert_eq!(host_of("https://good.example@evil.example/"), ("evil.example".to_owned(), None));
        assert_eq!(host_of("https://evil.example\\@good.example/"), ("evil.example".to_owned(), None));
        let (host, ascii) = host_of("https://bücher.example:8080/");
        assert_eq!((host.as_str(), ascii.as_deref()), ("bücher.example", Some("xn--bcher-kva.example")));
        let (host, ascii) = host_of("https://xn--bcher-kva.example/");
        assert_eq!((host.as_str(), ascii.as_deref()), ("xn--bcher-kva.example", Some("xn--bcher-kva.example")));
    }

    #[test]
    fn the_places_of_an_endpoint_are_filled_and_the_other_arguments_are_shown_beside() {
        let args = json!({"city": "Ulm/../x", "days": 3});
        let (url, rest) = fill_template("https://weather.example/{city}", args.as_object().expect("an object"));
        assert_eq!(url, "https://weather.example/Ulm%2F..%2Fx");
        assert_eq!(Value::Object(rest), json!({"days": 3}));
    }

    #[test]
    fn children_are_named_by_their_intents() {
        let batch = child_subject(&json!({"requests": ["one", {"intent": "two"}]}));
        let two = vec!["one".to_owned(), "two".to_owned()];
        assert_eq!(batch, Some(ProposalSubject::Child { spell: None, intents: two }));
        assert_eq!(child_subject(&json!({"requests": [{"context": 1}]})), None);
    }
}
