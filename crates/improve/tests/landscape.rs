//! Scripted landscapes: a search is followed to its end, and a script says what each trial scores and what each
//! proposal proposes. No model, no store and no clock plays a part.

use std::sync::Arc;

use cantrip::canon::{Hash, JobId, Timestamp, stable_hash};
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, Dataset, Example, ExampleDraft, ExampleId, ExampleResultRow, ExampleSource, JobKind,
    JobModels, JobSpec, Signature, SourceKind, Split, SplitPolicy, Subject, Unscored,
};
use cantrip_ds::job::{Ask, JobState, Proposal, Proposed, Trial, TrialFacts};
use cantrip_improve::compile::{Candidate, Ground, Search, SearchBase, Sizes, Walk, optimiser, optimiser_spec};
use serde_json::{Value, json};

/// The classes of the tickets, which the examples have in turn.
pub(crate) const TEAMS: [&str; 4] = ["billing", "shipping", "technical", "account"];

/// The score of a right answer.
pub(crate) const RIGHT: u64 = 1_000_000;

/// The most Asks that a search of these tests needs.
const ASKS_MAX: usize = 20_000;

/// A signature whose output is one of four teams.
pub(crate) fn triage() -> Signature {
    let text = json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
    let label = json!({
        "type": "object", "required": ["label"], "properties": {"label": {"type": "string", "enum": TEAMS}},
    });
    Signature::builder("@me/support", "Triage", 1)
        .instructions("Choose a team.")
        .system("{{ instructions }}")
        .user("{{ inputs.text | fence('text') }}")
        .input(text)
        .output(label)
        .build()
        .unwrap()
}

/// The id of an example: its split and its number in it, from 0.
pub(crate) fn example_id(split: Split, number: usize) -> ExampleId {
    format!("{}-{number:02}", split.as_str()).parse().unwrap()
}

/// A dataset of tickets with so many examples in each split.
pub(crate) fn tickets(train: usize, holdout: usize, test: usize) -> Arc<Dataset> {
    let source = ExampleSource { kind: SourceKind::File, id: "tickets.jsonl".to_owned(), line: None };
    let mut drafts = Vec::new();
    for (split, count) in [(Split::Train, train), (Split::Holdout, holdout), (Split::Test, test)] {
        for number in 0..count {
            let team = TEAMS[number % TEAMS.len()];
            let text = format!("{} ticket {number} about {team}", split.as_str());
            let mut draft = ExampleDraft::new(json!({ "text": text }), source.clone());
            draft.id = Some(example_id(split, number));
            draft.expected = Some(json!({ "label": team }));
            draft.split = Some(split);
            drafts.push(draft);
        }
    }
    let policy = SplitPolicy { given: true, ..SplitPolicy::default() };
    let subject = Subject::Signature(triage().id().clone());
    Arc::new(Dataset::build(subject, drafts, &policy, &[]).unwrap().dataset)
}

/// The way in which trials and proposals are answered.
pub(crate) struct Script<'a> {
    /// The score of a trial; none if the infrastructure failed.
    pub score: &'a dyn Fn(&Candidate, &Example) -> Option<u64>,
    /// The cost of a trial of a candidate.
    pub cost: &'a dyn Fn(&Candidate) -> u64,
    /// The text of a proposal.
    pub text: &'a dyn Fn(&Proposal) -> String,
}

impl<'a> Script<'a> {
    /// A script without costs, for a search without proposals.
    pub(crate) fn new(score: &'a dyn Fn(&Candidate, &Example) -> Option<u64>) -> Self {
        Self { score, cost: &no_cost, text: &no_text }
    }

    pub(crate) fn texts(self, text: &'a dyn Fn(&Proposal) -> String) -> Self {
        Self { text, ..self }
    }

    pub(crate) fn costs(self, cost: &'a dyn Fn(&Candidate) -> u64) -> Self {
        Self { cost, ..self }
    }
}

fn no_cost(_: &Candidate) -> u64 {
    0
}

fn no_text(proposal: &Proposal) -> String {
    panic!("{proposal:?}")
}

/// One Ask with what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub ask: Ask,
    pub rows: Vec<(ExampleResultRow, TrialFacts)>,
    pub proposed: Vec<Proposed>,
}

/// A search that was followed to its end.
pub(crate) struct Followed {
    pub steps: Vec<Step>,
    pub walk: Walk,
}

impl Followed {
    pub(crate) fn winner(&self) -> &Candidate {
        let Ask::Done(Some(winner)) = &self.walk.ask else { panic!("{:?}", self.walk.ask) };
        self.walk.candidate(winner).unwrap()
    }

    /// The trials of all Asks, in order.
    pub(crate) fn trials(&self) -> Vec<&Trial> {
        let mut listed = Vec::new();
        for step in &self.steps {
            if let Ask::Try(trials) = &step.ask {
                listed.extend(trials);
            }
        }
        listed
    }

    /// The proposals of all Asks, in order.
    pub(crate) fn proposals(&self) -> Vec<&Proposal> {
        let mut listed = Vec::new();
        for step in &self.steps {
            if let Ask::Propose(proposals) = &step.ask {
                listed.extend(proposals);
            }
        }
        listed
    }
}

/// A search on a dataset, with a label of its own for its randomness.
pub(crate) struct Landscape {
    pub search: Search,
    pub dataset: Arc<Dataset>,
    spec: JobSpec,
}

impl Landscape {
    /// Makes the search of an optimiser on tickets, with the options that are given.
    pub(crate) fn new(label: &str, name: &str, given: &Value, dataset: &Arc<Dataset>, reflects: bool) -> Self {
        let signature = Arc::new(triage());
        let artifact = signature.base_artifact();
        let hashes = signature.hashes();
        let of = Subject::Signature(signature.id().clone());
        let base_id: CandidateId = artifact.id().into();
        let base = SearchBase::Artifact { signature, artifact: Box::new(artifact) };
        let filled = optimiser_spec(name, given, base.clone(), reflects).unwrap();
        let space = base.space().reflecting(reflects).restored(&filled.options).unwrap();
        let pointer = Some("/label".to_owned());
        let ground = Ground::new(label, filled.options.clone(), space, Arc::clone(dataset), pointer);
        let search = Search::of_parts(optimiser(&filled.id).unwrap(), ground);
        let spec = JobSpec {
            kind: JobKind::Compile,
            of,
            hashes: Some(hashes),
            dataset_hash: dataset.hash(),
            base: Some(base_id),
            subject: None,
            baseline: None,
            split: Split::Test,
            metric: json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/label", "normalise": "none"}),
            optimiser: Some(filled),
            models: JobModels { task: Some("scripted/triage".to_owned()), ..JobModels::default() },
            epochs: 1,
            seed: label.to_owned(),
            compiler_version: COMPILER_VERSION.to_owned(),
            rerun: 0,
        };
        Self { search, dataset: Arc::clone(dataset), spec }
    }

    pub(crate) fn options(&self) -> &Value {
        self.search.ground().options()
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.search.sizes(None)
    }

    /// The state of the job before its first Ask.
    pub(crate) fn empty(&self) -> JobState {
        JobState::new(self.spec.clone(), self.spec.job_hash())
    }

    /// The state after these steps.
    pub(crate) fn after(&self, steps: &[Step]) -> JobState {
        let mut state = self.empty();
        for step in steps {
            for (row, facts) in &step.rows {
                state.add_result(row.clone());
                state.add_facts(row, facts.clone());
            }
            step.proposed.iter().for_each(|proposed| state.add_proposal(proposed.clone()));
        }
        state
    }

    /// Follows the search to its end.
    pub(crate) fn follow(&self, script: &Script<'_>) -> Followed {
        let (mut state, mut steps) = (self.empty(), Vec::new());
        for _ in 0..ASKS_MAX {
            let walk = self.search.walk(&state);
            let mut step = Step { ask: walk.ask.clone(), rows: Vec::new(), proposed: Vec::new() };
            match &walk.ask {
                Ask::Done(_) => return Followed { steps, walk },
                Ask::Try(trials) => {
                    let made = trials.iter().map(|trial| self.answer(&walk, trial, script));
                    step.rows = made.collect();
                }
                Ask::Propose(proposals) => {
                    let answered = |proposal: &Proposal| Proposed {
                        number: proposal.number,
                        component: proposal.component.clone(),
                        text: (script.text)(proposal),
                        receipt_id: None,
                        rejected: None,
                    };
                    step.proposed = proposals.iter().map(answered).collect();
                }
            }
            for (row, facts) in &step.rows {
                state.add_result(row.clone());
                state.add_facts(row, facts.clone());
            }
            step.proposed.iter().for_each(|proposed| state.add_proposal(proposed.clone()));
            steps.push(step);
        }
        panic!("the search does not end");
    }

    fn answer(&self, walk: &Walk, trial: &Trial, script: &Script<'_>) -> (ExampleResultRow, TrialFacts) {
        let candidate = walk.candidate(&trial.candidate_id).unwrap();
        let example = self.dataset.example(&trial.example_id).unwrap();
        assert_eq!(example.split, trial.split, "{trial:?}");
        let score = (script.score)(candidate, example);
        let is_right = score == Some(RIGHT);
        let output = if is_right { example.expected.clone() } else { Some(json!({"label": "account"})) };
        let row = ExampleResultRow {
            job_id: JobId::from_bytes([7; 16]),
            candidate_id: trial.candidate_id.clone(),
            example_id: trial.example_id.clone(),
            epoch: trial.epoch,
            split: trial.split,
            score_micro: score,
            unscored: if score.is_none() { Some(Unscored::Infrastructure) } else { None },
            own_failure: false,
            feedback_hash: no_feedback(),
            receipt_id: None,
            judge_receipts: Vec::new(),
            try_number: 1,
            at: Timestamp::EPOCH,
        };
        let output = output.filter(|_| trial.split == Split::Train);
        (row, TrialFacts { output, cost: Some((script.cost)(candidate)) })
    }
}

fn no_feedback() -> Hash {
    stable_hash(&json!("")).unwrap()
}

/// A number below `bound` that depends on all of these texts and on nothing else.
pub(crate) fn chance(parts: &[&str], bound: u64) -> u64 {
    cantrip_ds::stats::Random::new(&parts.join("|")).below(bound)
}
