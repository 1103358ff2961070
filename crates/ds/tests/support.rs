//! The helpers of these tests.

use std::sync::Arc;

use cantrip::canon::{IdSource, Money, Redactor, Timestamp};
use cantrip::crystal::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, Rates, Request, Response, Script, ScriptedCrystal,
};
use cantrip::loom::{AnyLoom, Journal, MemoryLoom, Step, StepId};
use cantrip::reply::{Call, Guard, Refusal, Reply};
use cantrip::spend::{AuthorizationMode, AuthorizationRef, Authorize, Operation, Scope, Terms};
use cantrip::{MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{NoFiles, Signature};
use cantrip_ds::{Predictor, TraceArchive};
use cantrip_store::Store;
use cantrip_tests::peer::{Peer, new_schema};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Returns the reply for a refusal.
pub(crate) async fn replied(refusal: Refusal) -> Reply {
    let ids = Arc::new(IdSource::new(MachineEntropy));
    let guard = Guard::new(Arc::new(MachineClock::new()), ids, Redactor::default());
    guard.call(Call::surface("test"), |rb| async { rb.refuse(refusal) }).await.reply
}

pub(crate) const SHOUT: &str = r#"
namespace = "@me/text"
name = "Shout"
version = 1
program_template = "direct.v1"
instructions = "Say it louder."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
[output_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
"#;

pub(crate) fn shout() -> Signature {
    Signature::parse(SHOUT, &NoFiles).unwrap()
}

/// Returns every store that keeps contracts: in memory, in a file, and on a server.
pub(crate) fn stores() -> Vec<(AnyLoom, Option<TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = Store::sqlite(folder.path().join("loom.db")).unwrap();
    let mut all = vec![(AnyLoom::new(MemoryLoom::new()), None), (AnyLoom::new(file), Some(folder))];
    if let Some(url) = Peer::Postgres.find() {
        all.push((AnyLoom::new(Store::postgres_in(&url, &new_schema()).unwrap()), None));
    }
    all
}

/// A script with a profile and a price chosen by the test.
#[derive(Clone)]
pub(crate) struct Posing {
    pub script: ScriptedCrystal,
    pub profile: Profile,
    pub price: Price,
}

impl Crystal for Posing {
    fn name(&self) -> &str {
        self.script.name()
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        self.script.ask(request, heard).await
    }

    fn profile(&self) -> Profile {
        self.profile
    }

    fn price(&self) -> Price {
        self.price
    }

    fn is_sequential(&self) -> bool {
        self.script.is_sequential()
    }

    fn skip_answers(&self, answers: usize) {
        self.script.skip_answers(answers);
    }
}

pub(crate) fn scripted(responses: impl IntoIterator<Item = Response>) -> ScriptedCrystal {
    ScriptedCrystal::new("scripted/shout", Script::new(responses))
}

/// Returns a crystal that plays this script.
pub(crate) fn says(script: &ScriptedCrystal) -> Posing {
    Posing { script: script.clone(), profile: Profile::of("scripted/shout"), price: Price::Free }
}

pub(crate) fn done(answer: Value) -> Response {
    Response::call("c1", "done", json!({ "answer": answer }))
}

/// Creates a predictor on this loom with this crystal.
pub(crate) fn predictor(loom: &AnyLoom, crystal: Posing, traces: TraceArchive) -> Predictor {
    let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
    let runtime = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(&ids));
    let crystal = AnyCrystal::new(crystal);
    Predictor::new(runtime, move |_: Option<&str>| Ok(crystal.clone()), traces, clock, ids)
}

/// Issues an authorization for predicts of the test signature.
pub(crate) async fn grant(loom: &AnyLoom, seed: u64, change: impl FnOnce(&mut Terms)) -> AuthorizationRef {
    let at: Timestamp = "2026-02-19T01:00:00.000Z".parse().unwrap();
    let id = AuthorizationRef::Issued(IdSource::seeded(seed).next(at));
    let scope = Scope { autopilot_id: Some(shout().id().to_string()), ..Scope::default() };
    let mut terms = Terms { mode: AuthorizationMode::DelegatedBudget, scope, issued_at: at, ..Terms::local() };
    terms.max_total = Some(1_000_000);
    change(&mut terms);
    let issue = Authorize { authorization: id, terms, actor: "ann".to_owned(), reason: "a test".to_owned(), at };
    let step = Step::outside_runs(StepId::new(format!("grant-{seed}")).unwrap());
    let step = step.money(Operation::Authorize(Box::new(issue)));
    assert!(matches!(loom.append(step).await.unwrap(), cantrip::loom::AppendOutcome::Committed(_)));
    id
}

pub(crate) fn listed() -> Price {
    let money = |text: &str| text.parse::<Money>().unwrap();
    Price::Listed(Rates::new(money("1 USD"), money("10 USD")).unwrap())
}
