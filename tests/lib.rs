//! Which crate may depend on what? The rules of `rooms.toml`, applied to manifests and sources.
//!
//! The compiler keeps private items private, but it cannot see what is absent on purpose: no SQL crate in the loom, no
//! envelope made outside a surface. So these absences are written down in `rooms.toml` and checked here, by a function
//! from the content of a workspace to its faults. The tests pass it the real workspace, and broken ones to show that
//! each rule can fail.

pub mod doc_examples;
pub mod garble;
pub mod mcp_suite;
pub mod peer;
pub mod rulebook;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use regex::Regex;
use serde::Deserialize;

/// `rooms.toml`, parsed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoomRules {
    #[serde(rename = "room")]
    pub rooms: Vec<Room>,
    pub knowledge: BTreeMap<String, Knowledge>,
    #[serde(rename = "exception", default)]
    pub exceptions: Vec<Exception>,
    #[serde(rename = "unsafe", default)]
    pub unsafe_modules: Vec<UnsafeModule>,
}

/// A room: a crate in a folder of `crates/`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    pub name: String,
    /// The rooms that its manifest may name.
    pub uses: Vec<String>,
    /// The rooms whose items it may reach through the re-exports of others.
    #[serde(default)]
    pub through: Vec<String>,
    pub forbids: Vec<String>,
}

/// A kind of dependency or code that may be forbidden to a room.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knowledge {
    pub why: String,
    pub crates: Vec<String>,
    pub sources: Vec<String>,
}

/// A file that may break one rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    pub path: String,
    pub knowledge: String,
    pub why: String,
}

/// A module that may hold unsafe code.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsafeModule {
    pub path: String,
    pub why: String,
}

/// A package of the workspace: its name and its dependencies to run or to build, without those of its tests.
#[derive(Debug, Clone)]
pub struct Package {
    pub name: String,
    pub needs: Vec<String>,
}

/// A file of the workspace, by its path from the root.
#[derive(Debug, Clone)]
pub struct Source {
    pub path: String,
    pub text: String,
}

/// A rule that a place breaks.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    pub place: String,
    pub fault: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.fault)
    }
}

impl RoomRules {
    /// Parses `rooms.toml` and checks that every name it uses is declared.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rules: Self = toml::from_str(text).map_err(|fault| fault.to_string())?;
        let mut above = BTreeSet::new();
        for room in &rules.rooms {
            for used in room.uses.iter().chain(&room.through) {
                if !above.contains(used.as_str()) {
                    return Err(format!("room {} uses {used}, which does not stand above it", room.name));
                }
            }
            for kind in &room.forbids {
                if !rules.knowledge.contains_key(kind) {
                    return Err(format!("room {} forbids {kind}, which is no kind of knowledge", room.name));
                }
            }
            above.insert(room.name.as_str());
        }
        Ok(rules)
    }

    /// Returns the room of a package: the library is `cantrip`, every other room `cantrip-<folder>`.
    fn room_of(&self, package: &str) -> Option<&Room> {
        let name = if package == "cantrip" { package } else { package.strip_prefix("cantrip-")? };
        self.rooms.iter().find(|room| room.name == name)
    }

    /// Returns the faults of the manifests.
    pub fn manifest_violations(&self, packages: &[Package]) -> Vec<Violation> {
        let mut found = Vec::new();
        for package in packages {
            let Some(room) = self.room_of(&package.name) else { continue };
            for need in &package.needs {
                if let Some(other) = self.room_of(need)
                    && !room.uses.contains(&other.name)
                {
                    found.push(Violation {
                        place: format!("crates/{}/Cargo.toml", room.name),
                        fault: format!("{} may not use {}", room.name, other.name),
                    });
                }
                for kind in &room.forbids {
                    let knowledge = &self.knowledge[kind];
                    if knowledge.crates.contains(need) {
                        found.push(Violation {
                            place: format!("crates/{}/Cargo.toml", room.name),
                            fault: format!("{need} brings {kind} into {}: {}", room.name, knowledge.why),
                        });
                    }
                }
            }
        }
        found
    }

    /// Returns the room of a source file.
    fn room_of_source(&self, source: &Source) -> Option<&Room> {
        let folder = source.path.strip_prefix("crates/")?.split('/').next()?;
        self.rooms.iter().find(|room| room.name == folder)
    }

    /// Returns every room that a source reaches through a re-export such as `cantrip::circle::Gate`, with its line.
    fn rooms_reached<'a>(&'a self, source: &'a Source, exports: &'a [Reexport]) -> Vec<(usize, &'a str)> {
        let mut found = Vec::new();
        for (line, path) in crate_paths(&source.text) {
            let Some(mut room) = self.room_of(&path[0].replace('_', "-")).map(|room| room.name.as_str()) else {
                continue;
            };
            for name in &path[1..] {
                let Some(export) = exports.iter().find(|export| export.from == room && export.name == *name) else {
                    break;
                };
                room = &export.room;
                found.push((line, room));
            }
        }
        found
    }

    /// Returns the places that reach a room through a re-export without a grant. A grant of `uses` or `through` allows
    /// it.
    pub fn reexport_violations(&self, sources: &[Source]) -> Vec<Violation> {
        let exports = reexports(sources);
        let mut found = Vec::new();
        for source in sources {
            let Some(room) = self.room_of_source(source) else { continue };
            for (line, reached) in self.rooms_reached(source, &exports) {
                if reached != room.name && !room.uses.iter().chain(&room.through).any(|granted| granted == reached) {
                    found.push(Violation {
                        place: format!("{}:{line}", source.path),
                        fault: format!("{} may not reach {reached} through a re-export", room.name),
                    });
                }
            }
        }
        found
    }

    /// Returns the grants that nothing needs: a room of `uses` that the manifest does not name, or a room of `through`
    /// that no source reaches.
    pub fn unused_grants(&self, packages: &[Package], sources: &[Source]) -> Vec<Violation> {
        let exports = reexports(sources);
        let mut found = Vec::new();
        for package in packages {
            let Some(room) = self.room_of(&package.name) else { continue };
            let named: Vec<&Room> = package.needs.iter().filter_map(|need| self.room_of(need)).collect();
            let own =
                sources.iter().filter(|source| self.room_of_source(source).is_some_and(|of| of.name == room.name));
            let reached: BTreeSet<&str> =
                own.flat_map(|source| self.rooms_reached(source, &exports)).map(|(_, reached)| reached).collect();
            let unnamed = room.uses.iter().filter(|used| named.iter().all(|named| named.name != **used));
            let unreached = room.through.iter().filter(|granted| !reached.contains(granted.as_str()));
            found.extend(unnamed.chain(unreached).map(|granted| Violation {
                place: "tests/rooms.toml".to_owned(),
                fault: format!("{} does not need its grant of {granted}", room.name),
            }));
        }
        found
    }

    /// Returns the faults of the sources. Comments may contain anything: lines that start with `//` are skipped.
    pub fn source_violations(&self, sources: &[Source]) -> Vec<Violation> {
        let mut found = Vec::new();
        for source in sources {
            let Some(room) = self.room_of_source(source) else { continue };
            let may_be_unsafe = self.unsafe_modules.iter().any(|module| module.path == source.path);
            for (number, line) in code_lines(&source.text) {
                let place = || format!("{}:{number}", source.path);
                if !may_be_unsafe
                    && matches(r"\bunsafe_code\b.*\)\]|\bunsafe\s*(\{|fn\b|impl\b|extern\b)", line)
                    && !line.contains("forbid")
                {
                    found.push(Violation {
                        place: place(),
                        fault: "unsafe outside the modules that argue for it".to_owned(),
                    });
                }
                for kind in &room.forbids {
                    let excepted = self.exceptions.iter().any(|e| e.path == source.path && e.knowledge == *kind);
                    let knowledge = &self.knowledge[kind];
                    if !excepted && knowledge.sources.iter().any(|pattern| matches(pattern, line)) {
                        found.push(Violation {
                            place: place(),
                            fault: format!("{kind} in {}: {}", room.name, knowledge.why),
                        });
                    }
                }
                for rule in REPLY_RULES {
                    if !rule.rooms.contains(&room.name.as_str()) && matches(rule.pattern, line) {
                        found.push(Violation { place: place(), fault: rule.why.to_owned() });
                    }
                }
            }
        }
        found
    }
}

/// A crate or a module of another room that a room re-exports in its `lib.rs`.
struct Reexport {
    from: String,
    /// The name under which it is reached.
    name: String,
    room: String,
}

/// Returns the re-exports of crates and modules. A re-exported type or constant belongs to the room that exports it.
fn reexports(sources: &[Source]) -> Vec<Reexport> {
    let pattern = r"^\s*pub use (cantrip(?:_[a-z_]+)?)((?:::[a-z_]+)*)(?: as ([a-z_]+))?;";
    let pattern = Regex::new(pattern).expect("a fixed pattern");
    let mut found = Vec::new();
    for source in sources {
        let Some(from) = source.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/src/lib.rs")) else {
            continue;
        };
        for export in code_lines(&source.text).filter_map(|(_, line)| pattern.captures(line)) {
            let path = format!("{}{}", &export[1], &export[2]);
            let last = path.rsplit("::").next().unwrap_or_default().to_owned();
            let name = export.get(3).map_or(last, |name| name.as_str().to_owned());
            let room = export[1].strip_prefix("cantrip_").unwrap_or(&export[1]).replace('_', "-");
            found.push(Reexport { from: from.to_owned(), name, room });
        }
    }
    found
}

/// Returns every path of a source that begins with a crate of this workspace, with its line. A path with braces, as in
/// `use cantrip::{canon::Money, loom}`, is one path for each of its ends.
fn crate_paths(text: &str) -> Vec<(usize, Vec<String>)> {
    let token = Regex::new(r"[A-Za-z_][A-Za-z0-9_]*|::|[{},]").expect("a fixed pattern");
    let lines =
        code_lines(text).flat_map(|(line, code)| token.find_iter(code).map(move |found| (line, found.as_str())));
    let tokens: Vec<(usize, &str)> = lines.collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some((_, name)) = tokens.get(at) {
        let begins = *name == "cantrip" || name.starts_with("cantrip_");
        if begins && (at == 0 || tokens[at - 1].1 != "::") {
            at = read_path(&tokens, at, &mut Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads the path at a token, and returns the position after it.
fn read_path<'a>(
    tokens: &[(usize, &'a str)],
    mut at: usize,
    before: &mut Vec<&'a str>,
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let (kept, line) = (before.len(), tokens[at].0);
    loop {
        before.push(tokens[at].1);
        at += 1;
        match (tokens.get(at), tokens.get(at + 1)) {
            (Some((_, "::")), Some((_, "{"))) => {
                at += 2;
                while tokens.get(at).is_some_and(|(_, token)| *token != "}") {
                    let is_name = !matches!(tokens[at].1, "," | "::" | "{");
                    at = if is_name { read_path(tokens, at, before, found) } else { at + 1 };
                }
                at += 1;
                break;
            }
            (Some((_, "::")), Some((_, name))) if !matches!(*name, "," | "}" | "::") => at += 1,
            _ => {
                found.push((line, before.iter().map(|name| (*name).to_owned()).collect()));
                break;
            }
        }
    }
    before.truncate(kept);
    at
}

struct ReplyRule {
    pattern: &'static str,
    /// The rooms in which it is allowed.
    rooms: &'static [&'static str],
    why: &'static str,
}

/// The rules of the reply system that its types cannot enforce.
const REPLY_RULES: &[ReplyRule] = &[
    ReplyRule {
        pattern: r"\bEnvelope::of\b",
        rooms: &["reply", "serve", "terminal", "cli"],
        why: "only a surface (serve, terminal, cli) makes an envelope: everything below returns a Reply",
    },
    ReplyRule {
        pattern: r"\b(WA|EN|CT|MCP)-(SYS|RES|VIS|IO|READ|WRITE|EXEC|DB|PARSE|VAL|GATE|LOG|CFG)-[SIDE]-[0-9]{3}\b",
        rooms: &["reply"],
        why: "a code is named by its constant: a literal outlives the registry's checks",
    },
    ReplyRule {
        pattern: r"\bmessage\(\)\s*(==|!=|\.(contains|starts_with|ends_with|eq|find)\b)",
        rooms: &[],
        why: "code branches on type and code, never on message text",
    },
    ReplyRule {
        pattern: r#"("(warning|warnings|partial|ok|success)"\s*:|\.(data|insert)\("(warning|warnings|partial|ok|success)")"#,
        rooms: &[],
        why: "there is no success with warnings: what the caller must act on is another code",
    },
    ReplyRule {
        pattern: r"\bstruct\s+(Reply|ReplyBuilder)\b|\b(registry|codes)!\s*[{(]",
        rooms: &["reply"],
        why: "there is one Reply, one builder and one registry",
    },
];

/// The lines of a source that are code, numbered from 1.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn matches(pattern: &str, line: &str) -> bool {
    use std::cell::RefCell;
    thread_local!(static COMPILED: RefCell<BTreeMap<String, Regex>> = const { RefCell::new(BTreeMap::new()) });
    COMPILED.with_borrow_mut(|compiled| {
        compiled
            .entry(pattern.to_owned())
            .or_insert_with(|| Regex::new(pattern).expect("a pattern of rooms.toml compiles"))
            .is_match(line)
    })
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// Returns all files with this extension below a folder of the workspace, in order; none if there is no such folder.
pub fn files_below(folder: &str, ending: &str) -> io::Result<Vec<Source>> {
    let (root, mut found) = (root(), Vec::new());
    let mut ahead = vec![root.join(folder)];
    while let Some(folder) = ahead.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                ahead.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                let shown = path.strip_prefix(&root).map_err(io::Error::other)?.to_string_lossy().into_owned();
                found.push(Source { path: shown, text: fs::read_to_string(&path)? });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// The rooms that `crates/README.md` lists, in its order: the first cell of each row that links to a folder.
pub fn indexed_rooms(readme: &str) -> Vec<String> {
    let row = Regex::new(r"(?m)^\| \[`([a-z-]+)`\]\(([a-z-]+)/?\)").expect("a fixed pattern");
    row.captures_iter(readme).filter(|found| found[1] == found[2]).map(|found| found[1].to_owned()).collect()
}
