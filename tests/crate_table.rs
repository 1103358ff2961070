//! The pages that list the crates say what the workspace is: which crates, in which order, with what they may use and
//! how long they are. `CANTRIP_BLESS=1` writes them.

use std::{env, fs};

use cantrip_tests::{Room, files_below, root};

const BEGIN: &str = "<!-- crates: written by a test -->\n";
const END: &str = "<!-- end of crates -->\n";

/// One row: the two columns that a person writes, and the two that are computed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    name: String,
    what: String,
    uses: String,
    never: String,
    lines: usize,
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let [name, what, uses, never, lines] = cells[..] else { return None };
        Some(Self {
            name: name.trim_start_matches("[`").split('`').next()?.to_owned(),
            what: what.to_owned(),
            uses: uses.to_owned(),
            never: never.to_owned(),
            lines: lines.replace(',', "").parse().ok()?,
        })
    }

    fn render(&self) -> String {
        let Self { name, what, uses, never, lines } = self;
        let lines = match lines {
            0..1000 => lines.to_string(),
            _ => format!("{},{:03}", lines / 1000, lines % 1000),
        };
        format!("| [`{name}`](crates/{name}/) | {what} | {uses} | {never} | {lines} |\n")
    }
}

fn table(rows: &[Row]) -> String {
    let head = "| crate | what it is | may use | must never know | lines |\n| --- | --- | --- | --- | --: |\n";
    head.to_owned() + &rows.iter().map(Row::render).collect::<String>()
}

/// The lines of a crate's sources, rounded to hundreds.
fn lines_of(name: &str) -> usize {
    let sources = files_below(&format!("crates/{name}/src"), "rs").expect("the sources of a crate are readable");
    sources.iter().map(|source| source.text.lines().count()).sum::<usize>().div_ceil(100) * 100
}

fn rooms() -> Vec<Room> {
    let rules = cantrip_tests::RoomRules::parse(include_str!("rooms.toml")).expect("rooms.toml is consistent");
    rules.rooms.into_iter().filter(|room| root().join("crates").join(&room.name).join("Cargo.toml").is_file()).collect()
}

/// Returns the rows that the workspace asks for; the columns that a person writes are kept.
fn expected(written: &[Row], rooms: &[Room]) -> Vec<Row> {
    let row = |room: &Room| {
        let old = written.iter().find(|row| row.name == room.name);
        let lines = lines_of(&room.name);
        let mut uses = room.uses.join(", ");
        if !room.through.is_empty() {
            uses += &format!("; through re-exports {}", room.through.join(", "));
        }
        Row {
            name: room.name.clone(),
            what: old.map(|row| row.what.clone()).unwrap_or_default(),
            uses,
            never: old.map(|row| row.never.clone()).unwrap_or_default(),
            // A number that is nearly right stays, so that not every change touches the page.
            lines: old.map(|row| row.lines).filter(|old| old.abs_diff(lines) <= 200 + lines / 20).unwrap_or(lines),
        }
    };
    rooms.iter().map(row).collect()
}

#[test]
fn the_table_of_crates_is_that_of_the_workspace() {
    let path = root().join("ARCHITECTURE.md");
    let page = fs::read_to_string(&path).expect("ARCHITECTURE.md is there");
    let (before, rest) = page.split_once(BEGIN).expect("the table begins");
    let (old, after) = rest.split_once(END).expect("the table ends");
    let written: Vec<Row> = old.lines().filter_map(Row::parse).collect();
    let expected = expected(&written, &rooms());
    if env::var_os("CANTRIP_BLESS").is_some() {
        fs::write(&path, [before, BEGIN, &table(&expected), END, after].concat()).expect("the page can be written");
        return;
    }
    assert_eq!(written, expected, "CANTRIP_BLESS=1 cargo test -p cantrip-tests writes the table");
    for row in &written {
        assert!(!row.what.is_empty() && !row.never.is_empty(), "ARCHITECTURE.md does not say what `{}` is", row.name);
    }
}

/// The index of the crates, each with the first line of its documentation.
fn index() -> String {
    let first_line = |room: &Room| {
        let folder = root().join("crates").join(&room.name).join("src");
        let text = ["lib.rs", "main.rs"].iter().find_map(|file| fs::read_to_string(folder.join(file)).ok());
        let text = text.expect("a crate has a root module");
        let line = text.lines().next().unwrap_or_default().trim_start_matches("//! ").replace("[`", "`");
        format!("| [`{name}`]({name}/) | {} |\n", line.replace("`]", "`"), name = room.name)
    };
    let head = "# The crates\n\n\
        One folder, one crate, in dependency order: a crate uses only crates above it. The line beside each is the first of\n\
        its own documentation. [ARCHITECTURE.md](../ARCHITECTURE.md) says what each may use, what it must never know and how\n\
        long it is. A test compares both pages with the workspace.\n\n\
        | crate | what it is |\n| --- | --- |\n";
    head.to_owned() + &rooms().iter().map(first_line).collect::<String>()
}

#[test]
fn the_index_of_crates_has_the_first_line_of_each() {
    let path = root().join("crates/README.md");
    if env::var_os("CANTRIP_BLESS").is_some() {
        fs::write(&path, index()).expect("the index can be written");
    }
    let written = fs::read_to_string(&path).expect("crates/README.md is there");
    assert_eq!(written, index(), "CANTRIP_BLESS=1 cargo test -p cantrip-tests writes it");
}

#[test]
fn no_crate_has_more_than_twelve_thousand_lines() {
    for room in rooms() {
        assert!(lines_of(&room.name) <= 12_000, "crates/{} is too large: cut it where it is two things", room.name);
    }
}

#[test]
fn a_row_that_lacks_a_crate_or_has_other_lines_is_found() {
    let rooms = rooms();
    let right = expected(&[], &rooms);
    assert_eq!(expected(&right, &rooms), right);
    let far = Row { lines: right[0].lines * 2 + 1000, ..right[0].clone() };
    assert_ne!(expected(std::slice::from_ref(&far), &rooms)[0], far);
    assert_eq!(Row::parse(right[0].render().trim()).as_ref(), Some(&right[0]));
}
