//! `ask_human`: a question to the person behind the entity.

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gate::function::{parameters, parse_arguments};
use crate::gate::{AnyGate, Call, Gate, GateSpec, Identity};

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

/// The reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// No answer arrived in time.
    Expired { seconds: u64 },
    /// The person refused to answer.
    Refused { actor: String, reason: String },
    /// The connection to the person failed.
    Failed { cause: String },
}

/// A person, reached through any surface.
///
/// * One answer per question. The surface sets the time limit.
/// * Dropping the future withdraws the question.
pub trait Human: Send + Sync + 'static {
    fn ask(
        &self,
        identity: Option<&Identity>,
        question: Question,
    ) -> impl Future<Output = Result<String, AskError>> + Send;
}

/// Makes a gate that asks this person.
pub fn ask_human(human: impl Human) -> AnyGate {
    let description = "Asks the person you work for and returns the answer. Ask only what you cannot find out.";
    AnyGate::from(AskHuman { promises: GateSpec::new("ask_human", description, parameters::<Question>()), human })
}

struct AskHuman<H> {
    promises: GateSpec,
    human: H,
}

impl<H: Human> Gate for AskHuman<H> {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let name = &self.promises.name;
        let question: Question = parse_arguments(name, call.arguments)?;
        match self.human.ask(call.identity.as_ref(), question).await {
            Ok(answer) => Ok(codes::gate_ok(name).value(answer)),
            Err(AskError::Expired { seconds }) => Err(codes::no_decision("the question", seconds).into()),
            Err(AskError::Refused { actor, reason }) => {
                Err(codes::approval_refused(actor, "the question", reason).into())
            }
            Err(AskError::Failed { cause }) => Err(codes::gate_failed(name, cause).into()),
        }
    }
}
