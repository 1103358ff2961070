//! The request for one reflection, as its Ask names it.

use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, ExampleId};
use cantrip_ds::job::Proposal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One case of a reflection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReflectionCase {
    /// An example of the train split.
    pub example_id: ExampleId,
    /// The candidate whose trial on the example is shown. Without one, the expected output is shown as a right answer.
    pub candidate_id: Option<CandidateId>,
}

/// A reflection: the slot, its present text, and the cases by their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReflectionRequest {
    /// The name of the slot.
    pub component: String,
    pub current_text: String,
    pub cases: Vec<ReflectionCase>,
}

/// The stored form of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestForm {
    component: String,
    current_text: String,
    cases: Vec<ReflectionCase>,
}

impl ReflectionRequest {
    /// Returns the request about the trials of one candidate on these examples.
    pub fn of_trials<'a>(
        component: &str,
        current_text: &str,
        candidate_id: &CandidateId,
        examples: impl IntoIterator<Item = &'a ExampleId>,
    ) -> Self {
        let case = |id: &ExampleId| ReflectionCase { example_id: id.clone(), candidate_id: Some(candidate_id.clone()) };
        Self {
            component: component.to_owned(),
            current_text: current_text.to_owned(),
            cases: examples.into_iter().map(case).collect(),
        }
    }

    /// Returns the request about examples and their expected outputs, which no candidate was tried on.
    pub fn of_examples<'a>(
        component: &str,
        current_text: &str,
        examples: impl IntoIterator<Item = &'a ExampleId>,
    ) -> Self {
        let case = |id: &ExampleId| ReflectionCase { example_id: id.clone(), candidate_id: None };
        Self {
            component: component.to_owned(),
            current_text: current_text.to_owned(),
            cases: examples.into_iter().map(case).collect(),
        }
    }

    /// Returns the request as the input of a proposal.
    pub fn to_value(&self) -> Value {
        json!({ "component": self.component, "current_text": self.current_text, "cases": self.cases })
    }

    /// Returns the proposal with this number within its job.
    pub fn proposal(&self, number: u64) -> Proposal {
        Proposal { number, component: self.component.clone(), input: self.to_value() }
    }

    /// Reads the request of a proposal.
    pub fn from_value(input: &Value) -> Result<Self, Refusal> {
        let read: Result<RequestForm, _> = serde_json::from_value(input.clone());
        let RequestForm { component, current_text, cases } = read.map_err(|fault: serde_json::Error| {
            Refusal::from(codes::contract_invalid(format!("a proposal without its cases: {fault}")))
        })?;
        Ok(Self { component, current_text, cases })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_back_from_its_proposal() {
        let candidate: CandidateId = "art_fa314739a6ab692b5cd3d96708665e89".parse().unwrap();
        let examples: Vec<ExampleId> = ["ex_1", "ex_2"].into_iter().map(|id| id.parse().unwrap()).collect();
        let tried = ReflectionRequest::of_trials("instructions", "Choose.", &candidate, &examples);
        let proposal = tried.proposal(3);
        assert_eq!((proposal.number, proposal.component.as_str()), (3, "instructions"));
        assert_eq!(ReflectionRequest::from_value(&proposal.input).unwrap(), tried);
        let shown = ReflectionRequest::of_examples("instructions", "Choose.", &examples);
        assert_eq!(shown.cases[1], ReflectionCase { example_id: examples[1].clone(), candidate_id: None });
        assert_eq!(ReflectionRequest::from_value(&shown.to_value()).unwrap(), shown);
        assert!(ReflectionRequest::from_value(&json!({"component": "instructions"})).is_err());
    }
}
