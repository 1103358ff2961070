//! `ask_human`: a question to the person behind the entity.

use cantrip_reply::{Filled, Refusal, Success, codes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gate::function::{parameters, read};
use crate::gate::{AnyGate, Call, Gate, Identity, Promises};

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// In words.
    #[schemars(length(min = 1))]
    pub question: String,
    /// Answers to choose from; any answer unless given.
    #[serde(default)]
    pub choices: Vec<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// Nobody answered in time.
    Expired { seconds: u64 },
    /// The person would not.
    Refused { actor: String, reason: String },
    /// The way to the person is broken.
    Failed { cause: String },
}

/// A person, by whichever surface reaches one.
///
/// * One answer per question; how long it may take is the surface's to say.
/// * Dropping the future takes the question back.
pub trait Human: Send + Sync + 'static {
    fn ask(
        &self,
        identity: Option<&Identity>,
        question: Question,
    ) -> impl Future<Output = Result<String, Unanswered>> + Send;
}

/// A gate that asks this person.
pub fn ask_human(human: impl Human) -> AnyGate {
    let description = "Asks the person you work for and returns the answer. Ask only what you cannot find out.";
    AnyGate::from(AskHuman { promises: Promises::new("ask_human", description, parameters::<Question>()), human })
}

struct AskHuman<H> {
    promises: Promises,
    human: H,
}

impl<H: Human> Gate for AskHuman<H> {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn call(&self, call: Call) -> Result<Filled<Success>, Refusal> {
        let name = &self.promises.name;
        let question: Question = read(name, call.arguments)?;
        match self.human.ask(call.identity.as_ref(), question).await {
            Ok(answer) => Ok(codes::gate_ok(name).value(answer)),
            Err(Unanswered::Expired { seconds }) => Err(codes::no_decision("the question", seconds).into()),
            Err(Unanswered::Refused { actor, reason }) => {
                Err(codes::approval_refused(actor, "the question", reason).into())
            }
            Err(Unanswered::Failed { cause }) => Err(codes::gate_failed(name, cause).into()),
        }
    }
}
