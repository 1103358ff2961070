//! The pages show what their views hold, and offer what the caller may do.

use cantrip_pages::ForkPlace;
use cantrip_pages::{
    Forms, PartContext, RunFilters, approval_page, cancel_page, compare_page, export_page, files_page, fork_page,
    loom_page, open_turn, proposal, rewind_page, runs_page, spell_page, thread_articles, tree_page,
};
use cantrip_service::cantrip::loom::{RunState, ThreadSummary};
use cantrip_view::{
    CastFields, DecideFields, FieldFault, FilesView, ForkFields, LoomView, ProposalSubject, RewindPlan, RunActions,
    RunHead,
};

use crate::markup::{self, Token};
use crate::{Server, views};

const TEXT: &str = "crates/store/tests/lease.rs";

fn text_of(page: &str) -> String {
    markup::text(&markup::tokens(&markup::body(page)))
}

/// Returns the values of the fields of a page by their names.
fn fields(page: &str) -> Vec<(String, String)> {
    let tokens = markup::tokens(&markup::body(page));
    let inputs = tokens.iter().filter_map(|token| match token {
        Token::Start(element, attributes) if matches!(element.as_str(), "input" | "button") => {
            Some((attributes.get("name")?.clone(), attributes.get("value").cloned().unwrap_or_default()))
        }
        Token::Start(..) | Token::End(_) | Token::Text(_) => None,
    });
    inputs.collect()
}

fn subject(at: usize) -> ProposalSubject {
    views::subjects(TEXT).swap_remove(at)
}

fn request(subject: ProposalSubject) -> String {
    let (server, fields) = (Server::new(TEXT), DecideFields::default());
    approval_page(&server.chrome(), &views::waiting(TEXT, 1, subject), &fields, &[])
}

#[test]
fn a_request_sends_back_what_was_seen_with_the_token_and_a_key() {
    let page = request(subject(0));
    let fields = fields(&page);
    let has = |name: &str, value: &str| fields.contains(&(name.to_owned(), value.to_owned()));
    assert!(has("seen", "digest") && has("token", "form-token"), "{fields:?}");
    assert!(has("decision", "approve") && has("decision", "refuse"), "{fields:?}");
    assert!(has("key", &format!("key-{}", views::approval_id(1))), "{fields:?}");
    let action = format!("action=\"/approvals/{}?run={}\"", views::approval_id(1), views::run_id(1));
    assert!(page.contains(&action), "{page}");
}

#[test]
fn a_file_that_changed_since_it_was_asked_about_is_shown_with_both_differences() {
    let (same, changed) = (request(subject(0)), request(subject(1)));
    assert_eq!(same.matches("class=\"diff\"").count(), 1);
    assert_eq!(changed.matches("class=\"diff\"").count(), 2);
    let (note, first) = (changed.find("The file changed after it was asked about"), changed.find("class=\"diff\""));
    assert!(note.is_some() && note < first, "it is told before the difference");
}

#[test]
fn a_trifecta_names_the_turns_that_touched_each_label() {
    let page = request(subject(0));
    for turn in [3, 7, 9] {
        assert!(page.contains(&format!("href=\"/turns/{}\"", views::turn_id(turn))), "turn {turn}");
    }
    let text = text_of(&page);
    for words in ["Private data", "Untrusted content", "A way out", "was there before this thread"] {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn a_request_says_why_what_it_costs_and_how_long_there_is() {
    let text = text_of(&request(subject(0)));
    for words in [
        "May it change crates/store/tests/lease.rs?",
        "is under require_approval.",
        "its worst-case cost is above the threshold for approval",
        "It costs at most 0.0500 USD; 0.2679 USD of the budget is left.",
        "Without a decision it is Denied in 23 h 55 min.",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
}

#[test]
fn a_command_has_one_argument_a_line_and_an_address_its_host_emphasised() {
    let command = request(subject(4));
    assert!(command.contains("<li>--flag</li>"), "{command}");
    let address = request(subject(5));
    let url = "https://<b class=\"host\">example.org</b>/crates/store/tests/lease.rs";
    assert!(address.contains(url) && address.contains("xn--exmple-cua.org"), "{address}");
}

#[test]
fn a_host_in_the_path_does_not_pass_for_the_host() {
    let page = request(ProposalSubject::Address {
        method: "GET".to_owned(),
        url: "https://evil.example/?bank.example".to_owned(),
        host: "evil.example".to_owned(),
        punycode: None,
        input: None,
    });
    assert!(page.contains("https://<b class=\"host\">evil.example</b>/?bank.example"), "{page}");
}

#[test]
fn a_decision_that_somebody_made_is_shown_with_who_and_when_and_without_buttons() {
    let server = Server::new(TEXT);
    let page = approval_page(&server.chrome(), &views::decided(TEXT), &DecideFields::default(), &[]);
    let text = text_of(&page);
    assert!(text.contains("Refused by local at 2026-02-19 02:04: crates/store/tests/lease.rs"), "{text}");
    assert!(!fields(&page).iter().any(|(name, _)| name == "decision"));
}

#[test]
fn a_long_difference_in_a_thread_leads_to_the_whole_request() {
    let server = Server::new(TEXT);
    let long = format!("--- a\n+++ a\n@@ -1 +1,999 @@\n{}", "+a line that is added\n".repeat(999));
    let file = ProposalSubject::File { path: TEXT.to_owned(), difference: Some(long), changed_since: None };
    let waiting = views::waiting(TEXT, 1, file);
    let context = PartContext { forms: Forms::BLANK, ..server.context() };
    let part = proposal(&context, &waiting).into_string();
    assert!(part.contains("KiB more are not shown") && part.contains("See more of it"), "{part}");
    assert!(part.contains("name=\"token\" value=\"\""), "a part for many viewers has no token of one of them");
    let page = approval_page(&server.chrome(), &waiting, &DecideFields::default(), &[]);
    assert!(page.matches("class=\"add\"").count() > part.matches("class=\"add\"").count());
}

#[test]
fn the_drawing_of_a_loom_has_a_link_for_each_thread_and_the_same_numbers_as_its_table() {
    let server = Server::new(TEXT);
    let page = loom_page(&server.chrome(), &views::loom(TEXT), &[views::turn_id(1_312)]);
    let (drawing, list) = page.split_once("</svg></div><div class=\"legend\"").unwrap();
    let (_, drawing) = drawing.split_once("aria-label=\"5 threads of this loom\"").unwrap();
    for number in 1..=5 {
        let link = format!("href=\"/runs/{}?entity={}\"", views::run_id(number), views::entity_id(number));
        assert!(drawing.contains(&link) && list.contains(&link), "thread {number}");
    }
    assert_eq!(drawing.matches("var(--accent-soft)").count(), 1, "the chosen thread is marked");
    assert_eq!(list.matches("name=\"of\"").count(), 5);
    assert!(text_of(&page).contains("· 5 threads, 643 turns, 22 children"), "{}", text_of(&page));
    assert!(drawing.contains("12 behind it") && list.contains("12 more behind it"));
}

#[test]
fn a_tree_nests_entities_with_own_money_and_with_children() {
    let server = Server::new(TEXT);
    let page = tree_page(&server.chrome(), &views::head(TEXT, RunState::Running));
    let text = text_of(&page);
    assert!(text.contains("own 0.0871 USD with children 0.1004 USD"), "{text}");
    assert!(text.contains("cut off: max_turns") && text.contains("spawned by turn 3"), "{text}");
    assert_eq!(page.matches("<details open>").count(), 2, "the root and the child that was cut off have children");
}

#[test]
fn a_comparison_marks_words_and_lines_and_folds_equal_turns() {
    let server = Server::new(TEXT);
    let view = views::compare("I ask one child", "I read three rooms", 4);
    let page = compare_page(&server.chrome(), &view);
    assert!(page.contains("I <del>ask one child</del>") || page.contains("<del>ask</del>"), "{page}");
    assert!(page.contains("<ins>"), "{page}");
    let text = text_of(&page);
    for words in ["131 turns are shared, up to ", "then they part: another intent, another crystal", "2 equal turns"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert!(text.contains("no turn here") && text.contains("3 further turns are not shown here."), "{text}");
    assert!(text.contains("1.20 M") && text.contains("9 min 41 s") && text.contains("not yet"), "{text}");
}

#[test]
fn what_was_typed_is_still_there_and_each_rule_stands_beside_its_field() {
    let server = Server::new(TEXT);
    let typed = "\nfirst line empty, \"quoted\" </textarea>";
    let cast = CastFields { intent: typed.to_owned(), context: String::new(), budget: "much".to_owned() };
    let faults = [FieldFault::new("budget", "write it like 0.50 USD")];
    let page = spell_page(&server.refused(), &views::spell(TEXT, 2), &cast, &faults, None);
    let tokens = markup::tokens(&markup::body(&page));
    markup::check_ids("spell", &tokens);
    let area = tokens.iter().position(|token| matches!(token, Token::Start(element, _) if element == "textarea"));
    assert_eq!(tokens.get(area.unwrap() + 1), Some(&Token::Text(typed.to_owned())));
    assert!(fields(&page).contains(&("budget".to_owned(), "much".to_owned())));
    assert!(page.contains("id=\"budget-rule\">write it like 0.50 USD</p>"), "{page}");
    assert!(page.contains("aria-describedby=\"budget-hint budget-rule\""), "{page}");
    assert!(!page.contains("Dry run</h2>"), "no dry run was asked for");
}

#[test]
fn a_button_stands_only_where_the_caller_may() {
    let server = Server::new(TEXT);
    let head = RunHead { actions: RunActions::default(), ..views::head(TEXT, RunState::Running) };
    let cancel = cancel_page(&server.chrome(), &head);
    assert!(cancel.contains("<button class=\"btn go\" disabled>Cancel the run</button>"), "{cancel}");
    let plan: RewindPlan = views::rewind(TEXT, 4);
    let rewind = rewind_page(&server.chrome(), &head, &plan, 3);
    assert!(rewind.contains("Files are restored only by the local owner on this machine."), "{rewind}");
    let files = files_page(&server.chrome(), &head, &views::files(TEXT, 3));
    assert!(!files.contains("/rewind"), "{files}");
    let may = RunHead { actions: RunActions { rewind: true, ..RunActions::default() }, ..head };
    let files = files_page(&server.chrome(), &may, &views::files(TEXT, 3));
    assert!(files.contains(&format!("href=\"/turns/{}/rewind\"", views::turn_id(2))), "{files}");
}

#[test]
fn cancelling_names_the_live_children() {
    let server = Server::new(TEXT);
    let page = cancel_page(&server.chrome(), &views::head(TEXT, RunState::Running));
    assert!(text_of(&page).contains("1 child is cancelled with it:"), "{page}");
    assert!(page.contains(&format!("entity={}", views::entity_id(5))), "{page}");
}

#[test]
fn going_back_names_the_files_that_are_restored_and_those_that_are_not() {
    let server = Server::new(TEXT);
    let page = rewind_page(&server.chrome(), &views::head(TEXT, RunState::Terminated), &views::rewind(TEXT, 4), 3);
    let (restored, kept) = page.split_once("Files that stay as they are").unwrap();
    for (at, part) in [(0, restored), (1, kept), (2, restored), (3, kept)] {
        assert!(part.contains(&format!("<code>{at}/{TEXT}</code>")), "{at}");
    }
    let fields = fields(&page);
    assert!(
        fields.contains(&("files".to_owned(), "on".to_owned()))
            && fields.contains(&("fork".to_owned(), "on".to_owned()))
    );
}

#[test]
fn a_fork_says_what_is_kept_and_copies_as_the_same_command() {
    let server = Server::new(TEXT);
    let fields = ForkFields { intent: "it's another".to_owned(), environment: "fresh".to_owned() };
    let place = ForkPlace { turn: views::turn_id(3), sequence: 3 };
    let page = fork_page(&server.chrome(), &views::head(TEXT, RunState::Terminated), &place, &fields, &[]);
    let text = text_of(&page);
    assert!(text.contains("no gate of theirs runs again"), "{text}");
    let command = format!(
        "cantrip loom fork {} 'it'\\''s another' --environment fresh --store sqlite:other.db",
        views::turn_id(3)
    );
    assert!(text.contains(&command), "{text}");
}

#[test]
fn an_exported_run_is_one_file_without_script_form_or_link_to_its_server() {
    let page = export_page(views::at(5), &views::head(TEXT, RunState::Terminated), &[views::window(TEXT, 3)]);
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("default-src 'none'"));
    for forbidden in ["<script", "<form", "<button", "<img", "href=\"/", "src=", " style=\""] {
        assert!(!page.contains(forbidden), "{forbidden} is in the page");
    }
    let text = text_of(&page);
    for words in ["2 secrets were taken out of this turn.", "Denied", "EN-READ-D-001", "Do not retry; ask for scope."] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
}

#[test]
fn a_folder_is_named_without_the_dot_at_its_end_and_a_reason_ends_once() {
    let command = |folder: &str| {
        let arguments = vec!["make".to_owned()];
        request(ProposalSubject::Command { arguments, folder: folder.to_owned(), input: None })
    };
    assert!(command("/home/ann/spells/.").contains("in the folder <code>/home/ann/spells</code>"));
    assert!(command("/.").contains("in the folder <code>/</code>"));
    assert!(!command("").contains("in the folder"));
    let server = Server::new(TEXT);
    let waiting = views::waiting("Put the note into German.", 1, subject(4));
    let text = text_of(&approval_page(&server.chrome(), &waiting, &DecideFields::default(), &[]));
    assert!(text.contains("Put the note into German. Nothing has been done.") && !text.contains(".."), "{text}");
}

#[test]
fn a_call_that_went_wrong_is_open_with_its_message_and_its_arguments() {
    let server = Server::new(TEXT);
    let window = views::window(TEXT, 1);
    let thread = thread_articles(&server.context(), &window).into_string();
    for class in ["call inv", "call deny", "call bad"] {
        let (_, call) = thread.split_once(&format!("<details class=\"{class}\"")).unwrap();
        let (call, _) = call.split_once("</details>").unwrap();
        let (tag, content) = call.split_once('>').unwrap();
        assert!(tag.ends_with(" open"), "{tag}");
        assert!(content.contains("Arguments</h3>") && content.contains("class=\"advice\""), "{content}");
    }
    let open = open_turn(&server.context(), &views::open_turn(TEXT)).into_string();
    let (_, call) = open.split_once("<details class=\"call deny\"").unwrap();
    assert!(call.split_once('>').unwrap().0.ends_with(" open"), "{call}");
    assert!(call.contains("Arguments</h3>") && call.contains("Do not retry; ask for scope."), "{call}");
    // The link names the item of the turn: thinking, what was said and the program come first.
    assert!(thread.contains(&format!("href=\"/calls/{}:4\"", views::turn_id(1))), "{thread}");
}

#[test]
fn every_thread_of_a_loom_can_be_chosen_and_one_without_a_turn_says_that_it_cannot() {
    let server = Server::new(TEXT);
    let fork = ThreadSummary { leaf: None, ..views::fork(TEXT, 2, 1, 7, 8) };
    let empty = ThreadSummary { leaf: None, ..views::root(TEXT, 3, 1) };
    let loom = LoomView { threads: vec![views::root(TEXT, 1, 9), fork, empty], ..views::loom(TEXT) };
    let page = loom_page(&server.chrome(), &loom, &[]);
    assert_eq!(page.matches("type=\"checkbox\"").count(), 3);
    assert!(page.contains(&format!("name=\"of\" value=\"{}\"", views::turn_id(7))), "{page}");
    assert_eq!(page.matches("type=\"checkbox\" name=\"of\" disabled").count(), 1, "{page}");
}

#[test]
fn a_list_without_runs_names_its_filters_and_leads_to_older_runs() {
    let server = Server::new(TEXT);
    let filters = RunFilters { spell: "analyst".to_owned(), q: "risk".to_owned(), ..RunFilters::default() };
    let page = runs_page(&server.chrome(), &views::runs(TEXT, 0), &filters);
    let text = text_of(&page);
    assert!(text.contains("None of the newest runs fits all of these filters."), "{text}");
    assert!(text.contains("Spell analyst drop this filter") && text.contains("Words risk"), "{text}");
    assert!(page.contains("href=\"/runs?spell=analyst&amp;q=risk&amp;before=77\""), "{page}");
    assert!(page.contains("href=\"/runs?q=risk\""), "{page}");
}

#[test]
fn a_page_of_a_run_has_one_command_and_it_is_that_of_the_page() {
    let server = Server::new(TEXT);
    let page = tree_page(&server.chrome(), &views::head(TEXT, RunState::Running));
    assert_eq!(page.matches("Copy as command").count(), 1);
    assert!(page.contains(&format!("data-copy=\"cantrip loom tree {}", views::run_id(1))), "{page}");
}

#[test]
fn a_file_whose_outcome_is_unknown_is_named() {
    let server = Server::new(TEXT);
    let view = FilesView { unknown: vec!["perhaps.txt".to_owned()], ..views::files(TEXT, 0) };
    let text = text_of(&files_page(&server.chrome(), &views::head(TEXT, RunState::Failed), &view));
    assert!(text.contains("Its outcome is unknown.") && text.contains("perhaps.txt"), "{text}");
}
