//! A page is bounded in bytes, whatever it shows.

use cantrip_pages::{SCRIPT, STYLE, loom_page, spine, thread_articles, tree_page};
use cantrip_service::cantrip::loom::{RunState, ThreadSummary};
use cantrip_view::RunHead;

use crate::{Amount, NamedPage, Server, pages, views};

const PAGE_BYTES_MAX: usize = 150 << 10;

fn check(all: Vec<NamedPage>, text: &str) {
    let sizes = all.into_iter().map(|(name, page)| (name, page.len() + STYLE.len() + SCRIPT.len()));
    // The exported page is a download and holds a whole thread.
    let large: Vec<(&str, usize)> =
        sizes.filter(|(name, bytes)| *name != "export" && *bytes >= PAGE_BYTES_MAX).collect();
    assert!(large.is_empty(), "{large:?} bytes with {:?}", text.chars().next());
}

#[test]
fn the_stylesheet_and_the_script_are_small() {
    assert!(STYLE.len() < 24 << 10, "{} bytes", STYLE.len());
    assert!(SCRIPT.len() < 16 << 10, "{} bytes", SCRIPT.len());
}

#[test]
fn a_page_with_many_things_is_bounded() {
    check(pages("Which module carries the most risk?", "Which one?", Amount::MANY), "Which");
}

#[test]
fn a_page_with_long_texts_is_bounded_also_where_their_markup_is_longer_than_they_are() {
    for piece in ["word ", "\"", "<", "\n", "\u{202e}", "ä", "* ", "a\n\n", "|", "\0"] {
        let long = piece.repeat(8_000 / piece.len());
        check(pages(&long, "another", Amount::LONG), piece);
    }
}

#[test]
fn a_window_of_many_large_turns_is_bounded_and_every_turn_has_its_heading() {
    for text in ["\"".repeat(2_000), "\u{202e}".repeat(500), "a\n\n".repeat(600)] {
        let server = Server::new(&text);
        let thread = thread_articles(&server.context(), &views::window(&text, 40)).into_string();
        assert!(thread.len() <= 72 << 10, "{} bytes with {:?}", thread.len(), text.chars().next());
        assert_eq!(thread.matches("<article ").count(), 41);
        assert!(thread.contains("items of this turn: "));
    }
}

#[test]
fn a_large_loom_and_a_large_tree_are_bounded_and_tell_what_is_left_out() {
    for text in ["Which module carries the most risk?".to_owned(), "\"".repeat(240)] {
        let server = Server::new(&text);
        let loom = loom_page(&server.chrome(), &views::large_loom(&text, 1_000), &[]);
        assert!(loom.contains("940 more threads are not drawn."));
        let threads = (2..2_000).map(|number| {
            let state = if number % 100 == 0 { RunState::Failed } else { RunState::Terminated };
            views::child(&text, number, 1, 3, state)
        });
        let threads: Vec<ThreadSummary> = [views::root(&text, 1, 9)].into_iter().chain(threads).collect();
        let head = RunHead { threads, ..views::head(&text, RunState::Running) };
        let tree = tree_page(&server.chrome(), &head);
        assert!(tree.contains("more entities are not listed."));
        assert_eq!(tree.matches("failed</span>").count(), 19, "every failed entity is listed");
        check(vec![("loom", loom), ("tree", tree)], &text);
    }
}

#[test]
fn the_spine_of_a_thread_of_any_length_is_one_bounded_part() {
    let drawn = spine(&views::spine(5_000), Some((1, 40)), "?entity=ent_06cyf9k2vtd3m8x1q7hbz4n5rw").into_string();
    assert!(drawn.len() < 80 << 10, "{} bytes", drawn.len());
    assert_eq!(drawn.matches("<a ").count(), 240);
}
