//! The side of a run: what each entity is doing now, money by child, where it came from, rewards, and commands.

use cantrip_service::cantrip::canon::TurnId;
use cantrip_service::cantrip::loom::{Origin, ThreadSummary};
use cantrip_view::{NowLine, RunHead};
use maud::{Markup, html};

use crate::children::{sum, thread_name, with_children};
use crate::fit::short_line;
use crate::frame::{PartContext, form_fields};
use crate::limits::SIDE_LINES_MAX;
use crate::write::{doing_mark, elapsed, money, money_of, plural, visible_text};

/// The length of a name at the side.
const NAME_CHARS: usize = 30;

/// Returns the side of a run: the part `side`.
pub fn side_part(context: &PartContext<'_>, head: &RunHead, now: &[NowLine]) -> Markup {
    html! {
        div id="side" {
            (now_section(context, head, now))
            (money_section(head))
            (origin_section(head))
            @if head.files > 0 || !head.files_counted {
                section {
                    h2 { "Files" }
                    ul {
                        li {
                            a href={ "/runs/" (head.run.run_id) "/files" } data-key="d" {
                                @if head.files_counted { (plural(head.files, "file changed", "files changed")) }
                                @else { "the files that it changed" }
                            }
                        }
                    }
                }
            }
            @if let (true, Some(leaf)) = (head.actions.reward, head.leaf) { (reward_section(context, head, leaf)) }
            (command_section(context, head))
        }
    }
}

fn now_section(context: &PartContext<'_>, head: &RunHead, now: &[NowLine]) -> Markup {
    let (listed, rest) = now.split_at(now.len().min(SIDE_LINES_MAX));
    html! {
        @if !now.is_empty() {
            section {
                h2 { "Now" }
                ul {
                    @for line in listed {
                        li class=[(Some(line.entity_id) != head.run.entity_id).then_some("sub")] {
                            a href={ "/runs/" (head.run.run_id) "?entity=" (line.entity_id) } {
                                (short_line(&line.name, NAME_CHARS))
                            }
                            span {
                                (doing_mark(&line.doing)) " "
                                span class="faint" { (elapsed(line.since, context.now)) }
                            }
                        }
                    }
                    @if !rest.is_empty() {
                        li class="sub" {
                            a href={ "/runs/" (head.run.run_id) "/tree" } {
                                (plural(rest.len() as u64, "more entity", "more entities"))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the money of the root and of each of its children with everything below them, the dearest first.
fn money_section(head: &RunHead) -> Markup {
    let Some(root) = head.threads.first() else { return html! {} };
    let mut children: Vec<&ThreadSummary> =
        head.threads.iter().skip(1).filter(|child| child.parent == Some(root.entity_id)).collect();
    children.sort_by_key(|child| std::cmp::Reverse(child.cost.map_or(0, |cost| cost.micros())));
    let (listed, rest) = children.split_at(children.len().min(SIDE_LINES_MAX));
    html! {
        @if !children.is_empty() {
            section {
                h2 { "Money by child" }
                ul {
                    li { span { "root, own" } span { (money_of(root.own_cost)) } }
                    @for child in listed {
                        li class="sub" {
                            a href={ "/runs/" (child.run_id) "?entity=" (child.entity_id) } {
                                (short_line(&thread_name(child), NAME_CHARS))
                            }
                            span { (money_of(child.cost)) span class="faint" { (with_children(child)) } }
                        }
                    }
                    @if !rest.is_empty() {
                        li class="sub" {
                            span class="dim" { (rest.len()) " more" }
                            @if let Some(cost) = sum(rest.iter().filter_map(|child| child.cost)) {
                                span { (money(cost)) }
                            }
                        }
                    }
                    li { span { "with children" } span { (money_of(root.cost)) } }
                }
            }
        }
    }
}

/// Returns the turn at which the thread branched off, and the way to the other threads.
fn origin_section(head: &RunHead) -> Markup {
    let origin = head.shown.as_ref().map(|shown| &shown.entity.origin);
    html! {
        section {
            h2 { "Branches" }
            ul {
                @if let Some(origin) = origin {
                    @match origin {
                        Origin::Fork(fork) => { li { a href={ "/turns/" (fork.turn) } { "forked from a turn" } } },
                        Origin::Child { parent, .. } => { li { a href={ "/turns/" (parent) } { "spawned by a turn" } } },
                        Origin::Root => {},
                    }
                }
                li { a href={ "/looms/" (head.run.loom_id) } { "all threads of this loom" } }
            }
        }
    }
}

/// Returns the form that rates the last turn.
fn reward_section(context: &PartContext<'_>, head: &RunHead, leaf: TurnId) -> Markup {
    html! {
        section {
            h2 { "Reward" }
            form class="form small" method="post" action={ "/turns/" (leaf) "/reward" } {
                (form_fields(context.forms, &format!("reward-{leaf}-{}", head.run.newest)))
                input type="hidden" name="back" value={ "/runs/" (head.run.run_id) };
                div class="field" {
                    label for="reward" { "Score" }
                    input id="reward" name="reward" inputmode="decimal" required placeholder="0.8";
                }
                div class="field" {
                    label for="reward-note" { "Why" }
                    input id="reward-note" name="note" maxlength="1000";
                }
                div class="row" { button class="btn" { "Rate the last turn" } }
            }
        }
    }
}

fn command_section(context: &PartContext<'_>, head: &RunHead) -> Markup {
    let run = head.run.run_id;
    let commands = context.commands;
    html! {
        section {
            h2 { "On the command line" }
            @if !head.pending.is_empty() { (command(&commands.run_approve(run).to_string())) }
            @if head.actions.resume { (command(&commands.run_resume(run).to_string())) }
            @if head.actions.cancel { (command(&commands.run_cancel(run).to_string())) }
            (command(&commands.run_show(run).to_string()))
        }
    }
}

fn command(line: &str) -> Markup {
    html! { code class="cli" tabindex="0" { (visible_text(line)) } }
}
