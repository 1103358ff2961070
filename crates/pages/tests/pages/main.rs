//! Every page and part from fixed views: how it is written, that hostile text stays text, and that it is bounded.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod hostile;
mod look;
mod markup;
mod shown;
mod snapshots;
mod sources;
mod views;
mod weight;

use cantrip_pages::{
    AssetPaths, Chrome, ForkPlace, Forms, LiveFeed, Notice, PartContext, Place, RunFilters, RunPage, Settings,
    approval_page, approvals_page, cancel_page, compare_page, continue_page, export_page, fault_page, files_page,
    fork_page, keys_page, loom_page, looms_page, records_page, rewind_page, run_page, runs_page, sent_page,
    settings_page, sign_in_page, spell_page, spells_page, tree_page,
};
use cantrip_service::cantrip::loom::RunState;
use cantrip_service::cantrip::reply::AnyCode;
use cantrip_view::command::Commands;
use cantrip_view::{CastFields, ContinueFields, DecideFields, FieldFault, ForkFields, ThreadWindow};

/// A page by its name.
pub(crate) type NamedPage = (&'static str, String);

/// How many of each thing the pages show.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) rows: u64,
    pub(crate) turns: u64,
}

impl Amount {
    pub(crate) const FEW: Self = Self { rows: 3, turns: 3 };
    /// The number that a reader of the store returns at once.
    pub(crate) const MANY: Self = Self { rows: 200, turns: 10 };
    /// The same number, with texts so long that one turn fills a window.
    pub(crate) const LONG: Self = Self { rows: 200, turns: 1 };
}

/// The values that all pages get from their server.
#[derive(Debug)]
pub(crate) struct Server {
    assets: AssetPaths,
    commands: Commands,
    notice: Notice,
}

impl Server {
    pub(crate) fn new(text: &str) -> Self {
        let code = AnyCode::parse("WA-READ-I-001").unwrap();
        let short: String = text.chars().take(240).collect();
        Self {
            assets: AssetPaths {
                style: "/assets/0a/pages.css".to_owned(),
                script: "/assets/0b/pages.js".to_owned(),
                mark: "/assets/0c/mark.svg".to_owned(),
            },
            commands: Commands::new(Some("sqlite:other.db".to_owned())),
            notice: Notice::new(code, short, "trace-1"),
        }
    }

    pub(crate) fn context(&self) -> PartContext<'_> {
        PartContext { now: views::at(5), commands: &self.commands, forms: Forms { token: "form-token", key: "key" } }
    }

    pub(crate) fn chrome(&self) -> Chrome<'_> {
        Chrome {
            title: "Page".to_owned(),
            heading_note: None,
            crumbs: Vec::new(),
            place: Some(Place::Runs),
            waiting: 2,
            user: Some("local"),
            signed_out_possible: true,
            settings: Settings::default(),
            assets: &self.assets,
            command: None,
            live: None,
            notice: None,
            part: self.context(),
        }
    }

    /// Returns the frame of a form that was sent and refused.
    pub(crate) fn refused(&self) -> Chrome<'_> {
        Chrome { notice: Some(&self.notice), ..self.chrome() }
    }
}

/// Returns every page with this text in every place where somebody else speaks. `other` is the text of the second
/// thread of the comparison.
pub(crate) fn pages(text: &str, other: &str, amount: Amount) -> Vec<NamedPage> {
    let server = Server::new(text);
    let chrome = server.chrome();
    let mut pages = pages_of_runs(&server, text, amount);
    pages.extend(pages_of_forms(&server, text, amount));
    pages.extend(pages_of_lists(&server, text, amount));
    pages.push(("compare", compare_page(&chrome, &views::compare(text, other, amount.rows))));
    pages
}

fn pages_of_runs(server: &Server, text: &str, amount: Amount) -> Vec<NamedPage> {
    let chrome = server.chrome();
    let rows = usize::try_from(amount.rows).unwrap();
    let (waiting, ended) = (views::head(text, RunState::Waiting), views::head(text, RunState::Terminated));
    let window = views::window(text, amount.turns);
    let (now, requests) = (views::now_lines(text), views::requests(text, 1).items);
    let live = RunPage { head: &waiting, window: &window, now: &now, waiting: &requests };
    let running = views::head(text, RunState::Running);
    let open = ThreadWindow { open: vec![views::open_turn(text)], ..window.clone() };
    let moving = RunPage { head: &running, window: &open, now: &now, waiting: &[] };
    let feed = LiveFeed { url: format!("/runs/{}/parts", running.run.run_id), cursor: window.newest };
    let over = RunPage { head: &ended, window: &window, now: &[], waiting: &[] };
    vec![
        ("run-waiting", run_page(&chrome, &live)),
        ("run-live", run_page(&Chrome { live: Some(feed), ..server.chrome() }, &moving)),
        ("run-terminated", run_page(&chrome, &over)),
        ("tree", tree_page(&chrome, &ended)),
        ("files", files_page(&chrome, &ended, &views::files(text, rows))),
        ("records", records_page(&chrome, &ended, &views::records(text, amount.rows))),
        ("sent", sent_page(&chrome, &ended, &views::sent(text, amount.rows))),
        ("export", export_page(views::at(5), &ended, &[window])),
    ]
}

fn pages_of_forms(server: &Server, text: &str, amount: Amount) -> Vec<NamedPage> {
    let (chrome, rows) = (server.refused(), usize::try_from(amount.rows).unwrap());
    // A parser reads some characters of a field as others; a person cannot type them.
    let typed: String = text.chars().filter(|char| !matches!(char, '\r' | '\0')).take(4_000).collect();
    let faults =
        [FieldFault::new("intent", &typed), FieldFault::new("budget", &typed), FieldFault::new("turns", &typed)];
    let reason = [FieldFault::new("reason", &typed)];
    let cast = CastFields { intent: typed.clone(), context: typed.clone(), budget: typed.clone() };
    let fork = ForkFields { intent: typed.clone(), environment: "fresh".to_owned() };
    let further = ContinueFields { turns: typed.clone(), budget: typed.clone() };
    let decide = DecideFields { decision: "refuse".to_owned(), reason: typed, seen: "digest".to_owned() };
    let (live, cut_off) = (views::head(text, RunState::Running), views::head(text, RunState::Truncated));
    let place = ForkPlace { turn: views::turn_id(3), sequence: 3 };
    let mut pages = vec![
        ("cancel", cancel_page(&chrome, &live)),
        ("continue", continue_page(&chrome, &cut_off, &further, &faults)),
        ("fork", fork_page(&chrome, &cut_off, &place, &fork, &faults)),
        ("rewind", rewind_page(&chrome, &cut_off, &views::rewind(text, rows), 3)),
        ("spell", spell_page(&chrome, &views::spell(text, rows), &cast, &faults, Some(&views::dry_run(text, rows)))),
        ("approval-decided", approval_page(&chrome, &views::decided(text), &DecideFields::default(), &[])),
    ];
    let names =
        ["file", "file-changed", "file-same", "file-bytes", "command", "address", "child", "money", "question", "call"];
    for (subject, name) in views::subjects(text).into_iter().zip(names) {
        pages.push((name, approval_page(&chrome, &views::waiting(text, 1, subject), &decide, &reason)));
    }
    pages
}

fn pages_of_lists(server: &Server, text: &str, amount: Amount) -> Vec<NamedPage> {
    let chrome = server.chrome();
    let rows = usize::try_from(amount.rows).unwrap();
    let spell = text.chars().filter(|char| !matches!(char, '\r' | '\0')).take(200).collect();
    let filters = RunFilters { spell, ..RunFilters::default() };
    let spells = vec![views::spell_summary(text); rows];
    let code = AnyCode::parse("EN-READ-D-001").unwrap();
    vec![
        ("runs", runs_page(&chrome, &views::runs(text, amount.rows.min(50)), &filters)),
        ("runs-none", runs_page(&chrome, &views::runs(text, 0), &filters)),
        ("approvals", approvals_page(&chrome, &views::requests(text, amount.rows.div_ceil(10)))),
        ("looms", looms_page(&chrome, &views::looms(text, amount.rows.min(50)))),
        ("loom", loom_page(&chrome, &views::loom(text), &[views::turn_id(1_312)])),
        ("spells", spells_page(&chrome, &spells)),
        ("keys", keys_page(&chrome)),
        ("settings", settings_page(&chrome)),
        ("code", cantrip_pages::code_page(&chrome, code)),
        ("fault", fault_page(&chrome, &server.notice, 404)),
        ("sign-in", sign_in_page(&Chrome { user: None, ..server.chrome() }, "/runs")),
    ]
}

/// Returns the pages of an empty store.
pub(crate) fn empty_pages() -> Vec<NamedPage> {
    let server = Server::new("text");
    let chrome = server.chrome();
    let head = cantrip_view::RunHead { threads: Vec::new(), ..views::head("text", RunState::Queued) };
    let none = RunFilters::default();
    vec![
        ("empty-runs", runs_page(&chrome, &views::no_runs(), &none)),
        (
            "empty-approvals",
            approvals_page(&chrome, &cantrip_service::cantrip::loom::ListPage { items: Vec::new(), next: None }),
        ),
        ("empty-looms", looms_page(&chrome, &views::looms("text", 0))),
        ("empty-loom", loom_page(&chrome, &views::large_loom("text", 0), &[])),
        ("empty-spells", spells_page(&chrome, &[])),
        ("empty-tree", tree_page(&chrome, &head)),
        (
            "empty-files",
            files_page(&chrome, &head, &cantrip_view::FilesView { unknown: Vec::new(), ..views::files("text", 0) }),
        ),
        ("empty-records", records_page(&chrome, &head, &views::records("text", 0))),
        ("empty-rewind", rewind_page(&chrome, &head, &views::rewind("text", 0), 3)),
    ]
}
