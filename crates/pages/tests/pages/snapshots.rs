//! Every page and part as it is written, compared with the committed one. `CANTRIP_BLESS=1` writes them.

use std::path::PathBuf;
use std::{env, fs};

use cantrip_pages::RunFilters;
use cantrip_pages::{
    STYLE, answer_part, approvals_rows, asks_part, head_part, open_turn, proposal, runs_rows, side_part, spine,
    thread_articles, waiting_count,
};
use cantrip_service::cantrip::loom::RunState;

use crate::{Amount, NamedPage, Server, empty_pages, pages, views};

const TEXT: &str = "Which module carries the most *risk*?";
const OTHER: &str = "Which module carries the least *risk*, and why?";

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pages/snapshots"))
}

/// Returns markup over several lines, without the stylesheet, so that a change can be read.
fn laid_out(markup: &str) -> String {
    let mut text = markup.replace(STYLE, "").replace("><", ">\n<");
    text.push('\n');
    text
}

fn check(all: Vec<NamedPage>) {
    let mut changed = Vec::new();
    for (name, markup) in all {
        let (path, markup) = (folder().join(format!("{name}.html")), laid_out(&markup));
        if env::var_os("CANTRIP_BLESS").is_some() {
            fs::write(&path, &markup).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        if committed != markup {
            let line = committed.lines().zip(markup.lines()).find(|(one, two)| one != two);
            changed.push(format!("{name}: {line:?}"));
        }
    }
    assert!(changed.is_empty(), "CANTRIP_BLESS=1 cargo test -p cantrip-pages writes these:\n{}", changed.join("\n"));
}

#[test]
fn every_page_is_written_as_committed() {
    check(pages(TEXT, OTHER, Amount::FEW));
}

#[test]
fn every_page_of_an_empty_store_is_written_as_committed() {
    check(empty_pages());
}

#[test]
fn every_part_is_written_as_committed() {
    let server = Server::new(TEXT);
    let context = server.context();
    let (waiting, ended) = (views::head(TEXT, RunState::Waiting), views::head(TEXT, RunState::Terminated));
    let requests = views::requests(TEXT, 1);
    let file = views::subjects(TEXT).swap_remove(0);
    let parts = [
        ("part-spine", spine(&views::spine(64), Some((240, 256)), "")),
        ("part-head", head_part(&context, &waiting)),
        ("part-side", side_part(&context, &waiting, &views::now_lines(TEXT))),
        ("part-asks", asks_part(&context, &requests.items)),
        ("part-answer", answer_part(&context, &ended)),
        ("part-thread", thread_articles(&context, &views::window(TEXT, 3))),
        ("part-open-turn", open_turn(&context, &views::open_turn(TEXT))),
        ("part-rows", runs_rows(&context, &views::runs(TEXT, 6), &RunFilters::default())),
        ("part-requests", approvals_rows(&context, &requests)),
        ("part-proposal", proposal(&context, &views::waiting(TEXT, 1, file))),
        ("part-count", waiting_count(2)),
    ];
    check(parts.into_iter().map(|(name, markup)| (name, markup.into_string())).collect());
}

#[test]
fn no_snapshot_is_left_of_a_page_that_is_gone() {
    let parts =
        ["spine", "head", "side", "asks", "answer", "thread", "open-turn", "rows", "requests", "proposal", "count"];
    let mut names: Vec<String> = parts.iter().map(|part| format!("part-{part}.html")).collect();
    let all = pages(TEXT, OTHER, Amount::FEW).into_iter().chain(empty_pages());
    names.extend(all.map(|(name, _)| format!("{name}.html")));
    for entry in fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(names.contains(&name), "{name} is written by nothing");
    }
}
