//! The evolution of a pool of candidates, followed along its path.
//!
//! A child that was no better than its parent on one minibatch may be proposed again, and is then compared on another
//! one: three examples can miss what a text improves. Only a candidate of the pool is known for good.

use std::collections::BTreeMap;

use cantrip_contract::limits::SCORE_MICRO_MAX;
use cantrip_contract::{CandidateId, Demo, Example, ExampleId, Split};
use cantrip_ds::job::{Ask, Proposed, Trial};
use cantrip_ds::stats::Random;

use super::batch::Minibatches;
use super::front::{FrontMember, ScoreRow, draw_parent, front};
use super::merge::{MergePair, MergeSide, merge_examples, merge_pairs, merge_side};
use super::options::GepaOptions;
use crate::content::Content;
use crate::limits::{COMPILE_DEMOS_MAX, GEPA_DEMO_DRAWS_MAX};
use crate::path::{BASE, Ordinal, Origin, Path};
use crate::reflection::ReflectionRequest;
use crate::rejection::Rejection;
use crate::slot::{Slot, SlotKind};
use crate::space::Space;
use crate::state::{Cell, State};

/// A candidate of the pool: it was tried on all of holdout.
#[derive(Debug)]
struct Member {
    ordinal: Ordinal,
    /// The places of its parents in the pool.
    parents: Vec<usize>,
    /// The place of the slot that its next child changes.
    next_slot: usize,
    /// Its scores on the holdout examples, in the order of their ids.
    scores: ScoreRow,
    mean: u64,
}

/// A parent that an iteration drew, and what its child is to change.
#[derive(Debug)]
struct Draw {
    /// The number of the draw within its iteration, from 1.
    number: u64,
    /// The place of the parent in the pool.
    parent: usize,
    slot_place: usize,
    slot: Slot,
    batch: Vec<ExampleId>,
}

/// A child that is compared with a parent.
#[derive(Debug)]
struct Child {
    ordinal: Ordinal,
    /// The place of the parent in the pool.
    parent: usize,
    batch: Vec<ExampleId>,
}

/// The evolution of a pool.
pub(super) struct Evolution<'p, 'a> {
    path: &'p mut Path<'a>,
    options: GepaOptions,
    /// The slots that children change, in turn.
    slots: Vec<Slot>,
    /// The train examples that can become demos.
    demo_examples: Vec<ExampleId>,
    pool: Vec<Member>,
    /// The parent and the slot with which each child was made first.
    made: BTreeMap<Ordinal, (usize, usize)>,
    batches: Minibatches,
    /// The number of merges that were tried.
    merges: u64,
}

impl<'p, 'a> Evolution<'p, 'a> {
    pub(super) fn new(path: &'p mut Path<'a>) -> Self {
        let state = path.state();
        let options = GepaOptions::of_filled(state.options());
        let demo_examples = if state.space().has(&Slot::Demos) { state.labelled_train() } else { Vec::new() };
        let is_open = |slot: &&Slot| match slot.kind() {
            SlotKind::Text | SlotKind::Hints => state.space().reflects(),
            SlotKind::Demos => !demo_examples.is_empty(),
            SlotKind::Choice => false,
        };
        let slots: Vec<Slot> = state.space().slots().iter().filter(is_open).cloned().collect();
        let size = usize::try_from(options.minibatch).unwrap_or(usize::MAX);
        let batches = Minibatches::new(state.label("epoch"), state.train().len(), size);
        Self { path, options, slots, demo_examples, pool: Vec::new(), made: BTreeMap::new(), batches, merges: 0 }
    }

    /// Follows the evolution to its end, and returns the winner.
    pub(super) fn run(mut self) -> Result<Ordinal, Ask> {
        self.path.complete(BASE)?;
        self.join(BASE, Vec::new(), 0);
        if self.slots.is_empty() || self.path.state().train().is_empty() {
            return Ok(self.path.best());
        }
        let mut idle = 0;
        for iteration in 1..=self.options.max_iterations {
            if idle >= self.options.patience || self.is_perfect() {
                break;
            }
            if self.iterate(iteration)? {
                idle = 0;
                self.try_merge(iteration)?;
            } else {
                idle += 1;
            }
        }
        for ordinal in 0..self.path.candidates().len() {
            self.path.drop_candidate(ordinal, "not_better");
        }
        Ok(self.path.best())
    }

    fn state(&self) -> State<'a> {
        self.path.state()
    }

    fn id(&self, ordinal: Ordinal) -> &CandidateId {
        &self.path.candidate(ordinal).id
    }

    fn score(&self, ordinal: Ordinal, example: &ExampleId) -> Option<u64> {
        self.state().cell(self.id(ordinal), example).and_then(Cell::score)
    }

    /// Adds a candidate that was tried on all of holdout to the pool.
    fn join(&mut self, ordinal: Ordinal, parents: Vec<usize>, next_slot: usize) {
        let scores = self.state().holdout().iter().map(|example| self.score(ordinal, example)).collect();
        let mean = self.path.mean(ordinal).unwrap_or(0);
        self.pool.push(Member { ordinal, parents, next_slot, scores, mean });
    }

    /// Returns true if a candidate is right on every holdout example that has a score.
    fn is_perfect(&self) -> bool {
        let is_perfect = |scores: &ScoreRow| {
            let mut scored = scores.iter().flatten().peekable();
            scored.peek().is_some() && scored.all(|score| *score == SCORE_MICRO_MAX)
        };
        self.pool.iter().any(|member| is_perfect(&member.scores))
    }

    fn means(&self) -> Vec<u64> {
        self.pool.iter().map(|member| member.mean).collect()
    }

    fn front(&self) -> Vec<FrontMember> {
        let scores: Vec<ScoreRow> = self.pool.iter().map(|member| member.scores.clone()).collect();
        front(&scores, &self.means())
    }

    /// Draws the parents of an iteration, each with its slot and its minibatch.
    fn draw(&mut self, iteration: u64) -> Vec<Draw> {
        let front = self.front();
        let mut drawn = Vec::new();
        for number in 1..=self.options.proposals {
            let label = self.state().label(&self.step(iteration, "parent", number));
            let Some(parent) = draw_parent(&front, &label) else { break };
            let slot_place = self.pool[parent].next_slot % self.slots.len();
            self.pool[parent].next_slot = slot_place + 1;
            let train = self.state().train();
            let batch = self.batches.take_next().into_iter().map(|place| train[place].clone()).collect();
            drawn.push(Draw { number, parent, slot_place, slot: self.slots[slot_place].clone(), batch });
        }
        drawn
    }

    /// Returns the name of a step of randomness. Iterations with one proposal have no number in it.
    fn step(&self, iteration: u64, step: &str, number: u64) -> String {
        if self.options.proposals == 1 { format!("{iteration}|{step}") } else { format!("{iteration}|{step}|{number}") }
    }

    /// Makes one iteration. Returns true if a child was accepted.
    fn iterate(&mut self, iteration: u64) -> Result<bool, Ask> {
        let drawn = self.draw(iteration);
        let trials = drawn.iter().flat_map(|draw| self.trials(self.pool[draw.parent].ordinal, &draw.batch)).collect();
        self.path.try_all(trials)?;
        let open: Vec<Draw> = drawn.into_iter().filter(|draw| self.can_teach(draw)).collect();
        let children = self.children(iteration, open)?;
        let trials = children.iter().flat_map(|child| self.trials(child.ordinal, &child.batch)).collect();
        self.path.try_all(trials)?;
        let accepted: Vec<Ordinal> =
            children.iter().filter(|child| self.is_better(child)).map(|child| child.ordinal).collect();
        let holdout = self.state().holdout_order();
        self.path.try_on(&accepted, holdout, Split::Holdout)?;
        for ordinal in &accepted {
            let (parent, slot_place) = self.made.get(ordinal).copied().unwrap_or_default();
            self.join(*ordinal, vec![parent], slot_place + 1);
        }
        Ok(!accepted.is_empty())
    }

    /// Returns the trials of a candidate on train examples.
    fn trials(&self, ordinal: Ordinal, batch: &[ExampleId]) -> Vec<Trial> {
        batch.iter().map(|example| self.state().trial(self.id(ordinal), example, Split::Train)).collect()
    }

    /// Returns true if the parent failed on an example of the minibatch: from a perfect one nothing is learned.
    fn can_teach(&self, draw: &Draw) -> bool {
        let ordinal = self.pool[draw.parent].ordinal;
        draw.batch.iter().filter_map(|example| self.score(ordinal, example)).any(|score| score < SCORE_MICRO_MAX)
    }

    /// Makes the children of the drawn parents, in order. Texts are proposed all at once.
    fn children(&mut self, iteration: u64, drawn: Vec<Draw>) -> Result<Vec<Child>, Ask> {
        let asking = drawn.iter().filter(|draw| draw.slot.is_text());
        let requests: Vec<ReflectionRequest> = asking.map(|draw| self.request(draw)).collect();
        let mut answers = self.path.propose(&requests)?.into_iter();
        let mut children: Vec<Child> = Vec::new();
        for draw in drawn {
            let content = if draw.slot.is_text() {
                let Some(answer) = answers.next() else { break };
                self.proposed_child(&draw, &answer).map(|content| (content, Some(answer.number)))
            } else {
                self.swapped_child(iteration, &draw).map(|content| (content, None))
            };
            let Some((content, proposal)) = content else { continue };
            let origin = Origin {
                op: if proposal.is_some() { "reflect" } else { "demos" },
                component: Some(draw.slot.to_string()),
                parents: vec![self.pool[draw.parent].ordinal],
                proposal,
            };
            let rejection = match self.path.add(content, origin) {
                Ok(added) if self.is_open(added.ordinal, &children) => {
                    let Draw { parent, slot_place, batch, .. } = draw;
                    self.made.entry(added.ordinal).or_insert((parent, slot_place));
                    children.push(Child { ordinal: added.ordinal, parent, batch });
                    continue;
                }
                Ok(_) => Rejection::Known,
                Err(rejection) => rejection,
            };
            // The report counts texts. An example that adds nothing is no text.
            if let Some(number) = proposal {
                self.path.reject_proposal(number, rejection.as_str());
            }
        }
        Ok(children)
    }

    /// Returns true if nothing is decided about a candidate, and it is not one of the children of this iteration.
    fn is_open(&self, ordinal: Ordinal, children: &[Child]) -> bool {
        self.path.candidate(ordinal).decision.is_none() && children.iter().all(|child| child.ordinal != ordinal)
    }

    /// Returns the reflection on the cases of a minibatch.
    fn request(&self, draw: &Draw) -> ReflectionRequest {
        let ordinal = self.pool[draw.parent].ordinal;
        let text = self.path.content(ordinal).text(&draw.slot);
        let scored = draw.batch.iter().filter(|example| self.score(ordinal, example).is_some());
        ReflectionRequest::of_trials(&draw.slot.to_string(), &text, self.id(ordinal), scored)
    }

    /// Returns the content with a proposed text. A text that is not used is counted.
    fn proposed_child(&mut self, draw: &Draw, answer: &Proposed) -> Option<Content> {
        if let Some(reason) = &answer.rejected {
            self.path.reject_proposal(answer.number, reason);
            return None;
        }
        let parent = self.path.content(self.pool[draw.parent].ordinal);
        let read = self.state().space().with_text(parent, &draw.slot, &answer.text);
        match read {
            Ok(content) => Some(content),
            Err(rejection) => {
                self.path.reject_proposal(answer.number, rejection.as_str());
                None
            }
        }
    }

    /// Returns the content with one more demo, or with one demo in the place of another. The demo is a train example
    /// with its expected output. An example of the minibatch on which the child is compared is drawn after all others.
    fn swapped_child(&self, iteration: u64, draw: &Draw) -> Option<Content> {
        let state = self.state();
        let parent = self.path.content(self.pool[draw.parent].ordinal);
        let mut random = Random::new(&state.label(&self.step(iteration, "demo", draw.number)));
        let mut order: Vec<&ExampleId> = self.demo_examples.iter().collect();
        random.shuffle(&mut order);
        let (seen, unseen): (Vec<&ExampleId>, Vec<&ExampleId>) =
            order.into_iter().partition(|id| draw.batch.contains(id));
        let drawn = unseen.into_iter().chain(seen).filter_map(|id| demo_of(state.example(id)?));
        let drawn = drawn.filter(|demo| !parent.demos().contains(demo));
        // A demo that makes a candidate which was tried before is taken only if no other is drawn.
        let mut tried = None;
        for demo in drawn.take(GEPA_DEMO_DRAWS_MAX) {
            let mut demos: Vec<Demo> = parent.demos().to_vec();
            let places = if demos.len() < COMPILE_DEMOS_MAX { demos.len() + 1 } else { demos.len() };
            let place = random.index(places);
            if place < demos.len() {
                demos[place] = demo;
            } else {
                demos.push(demo);
            }
            let content = parent.with_demos(demos);
            match self.path.find(&content) {
                Ok(None) => return Some(content),
                Ok(Some(ordinal)) if self.is_open(ordinal, &[]) => tried = tried.or(Some(content)),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        tried
    }

    /// Returns true if a child has a higher sum than its parent on the examples on which both have a score.
    fn is_better(&self, child: &Child) -> bool {
        let parent = self.pool[child.parent].ordinal;
        let (mut own, mut former) = (0_u64, 0_u64);
        for example in &child.batch {
            if let (Some(one), Some(other)) = (self.score(child.ordinal, example), self.score(parent, example)) {
                own += one;
                former += other;
            }
        }
        own > former
    }

    /// Tries one merge of two candidates of the front, if merges are left and a pair fits.
    fn try_merge(&mut self, iteration: u64) -> Result<(), Ask> {
        if self.merges >= self.options.merges || self.is_perfect() {
            return Ok(());
        }
        let parents: Vec<Vec<usize>> = self.pool.iter().map(|member| member.parents.clone()).collect();
        let label = self.state().label(&format!("{iteration}|merge"));
        let pairs = merge_pairs(&self.front(), &parents, &self.means());
        for pair in pairs {
            let content = self.merged(pair);
            let places = merge_examples(&self.pool[pair.first].scores, &self.pool[pair.second].scores, &label);
            if places.is_empty() || self.path.find(&content) != Ok(None) {
                continue;
            }
            let (first, second) = (self.pool[pair.first].ordinal, self.pool[pair.second].ordinal);
            let origin = Origin { op: "merge", component: None, parents: vec![first, second], proposal: None };
            let Ok(added) = self.path.add(content, origin) else { continue };
            self.merges += 1;
            let holdout = self.state().holdout();
            let examples: Vec<ExampleId> = places.into_iter().map(|place| holdout[place].clone()).collect();
            self.path.try_on(&[added.ordinal], &examples, Split::Holdout)?;
            // On a small holdout these were all examples: the merge is measured as any candidate of the pool.
            let is_complete = self.path.is_complete(added.ordinal);
            if is_complete || self.is_merge_kept(added.ordinal, first, second, &examples) {
                self.path.complete(added.ordinal)?;
                let next_slot = self.pool[pair.first].next_slot;
                self.join(added.ordinal, vec![pair.first, pair.second], next_slot);
            } else {
                self.path.drop_candidate(added.ordinal, "below_a_parent");
            }
            return Ok(());
        }
        Ok(())
    }

    /// Returns the content that takes each slot from the side that changed it.
    fn merged(&self, pair: MergePair) -> Content {
        let content = |member: usize| self.path.content(self.pool[member].ordinal);
        let (ancestor, first, second) = (content(pair.ancestor), content(pair.first), content(pair.second));
        let (first_mean, second_mean) = (self.pool[pair.first].mean, self.pool[pair.second].mean);
        let mut merged = first.clone();
        for slot in self.state().space().slots() {
            let (one, other) = (first.value(slot), second.value(slot));
            match merge_side(&ancestor.value(slot), (&one, first_mean), (&other, second_mean)) {
                MergeSide::First => {}
                MergeSide::Second => merged = merged.with_value_of(slot, second),
            }
        }
        merged
    }

    /// Returns true if a merge is not below the better of its parents on the examples on which it has a score.
    fn is_merge_kept(&self, merged: Ordinal, first: Ordinal, second: Ordinal, examples: &[ExampleId]) -> bool {
        let scored: Vec<&ExampleId> = examples.iter().filter(|id| self.score(merged, id).is_some()).collect();
        let sum = |ordinal: Ordinal| -> u64 { scored.iter().filter_map(|id| self.score(ordinal, id)).sum() };
        !scored.is_empty() && sum(merged) >= sum(first).max(sum(second))
    }
}

/// Returns the demo of an example with its expected output.
fn demo_of(example: &Example) -> Option<Demo> {
    Some(Space::demo(&example.input, example.expected.as_ref()?))
}
