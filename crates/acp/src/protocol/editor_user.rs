//! The user at the editor: approves calls and answers the questions of an entity.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CreateElicitationRequest, Diff, ElicitationAction, ElicitationContentValue, ElicitationFormMode, ElicitationSchema,
    ElicitationSessionScope, PermissionOption, PermissionOptionKind, RequestPermissionOutcome,
    RequestPermissionRequest, SessionId, StringPropertySchema, ToolCallContent, ToolCallId,
};
use cantrip_service::GateRoots;
use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::circle::gate::Identity;
use cantrip_service::cantrip::circle::gate::builtin::{AskError, Human, Question};
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::{HumanDecision, PendingApproval};
use cantrip_view::{danger_sentences, edit_of, trifecta_remedy};

use super::session_updates::{self, CallPaths, SessionUpdater};
use crate::limits::ACP_DIFF_BYTES_MAX;

const ONCE: &str = "once";
const FOR_THE_PROMPT: &str = "prompt";
const REFUSE: &str = "refuse";
/// The field of a form that holds the answer.
const ANSWER: &str = "answer";

/// The user at the editor. Cheap to clone; all clones are the same user.
///
/// Gates are created before an editor connects, so a question is routed by the run that asks it.
#[derive(Debug, Clone, Default)]
pub struct EditorUser(Arc<Mutex<HashMap<RunId, EditorLink>>>);

/// The connection to the user during a run.
#[derive(Debug, Clone)]
pub(super) struct EditorLink {
    pub(super) to: ConnectionTo<Client>,
    pub(super) session: SessionId,
    /// True if the editor can show a form.
    pub(super) forms: bool,
}

impl EditorUser {
    fn links(&self) -> MutexGuard<'_, HashMap<RunId, EditorLink>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Routes the questions of this run to this editor until the guard is dropped.
    pub(super) fn connect_run(&self, run: RunId, line: EditorLink) -> LinkGuard {
        self.links().insert(run, line);
        LinkGuard { person: self.clone(), run }
    }
}

/// Removes the route of a run when dropped.
pub(super) struct LinkGuard {
    person: EditorUser,
    run: RunId,
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        self.person.links().remove(&self.run);
    }
}

impl Human for EditorUser {
    async fn ask(&self, identity: Option<&Identity>, question: Question) -> Result<String, AskError> {
        let line = identity.and_then(|identity| self.links().get(&identity.run_id).cloned());
        let nobody = |reason: &str| AskError::Refused { actor: "nobody".to_owned(), reason: reason.to_owned() };
        let Some(line) = line else { return Err(nobody("no editor is connected")) };
        if line.forms {
            return line.ask_form(question).await;
        }
        if question.choices.is_empty() {
            return Err(nobody("this editor has no forms; ask with choices to pick from"));
        }
        let call = identity.and_then(|identity| {
            Some(session_updates::call_id(&identity.turn_id.to_string(), identity.tool_call_id.as_deref()?))
        });
        line.ask_choice(call.unwrap_or_else(|| ToolCallId::new("question")), question).await
    }
}

fn refused_answer(reason: &str) -> AskError {
    AskError::Refused { actor: "the person at the editor".to_owned(), reason: reason.to_owned() }
}

fn connection_failed(error: &agent_client_protocol::Error) -> AskError {
    AskError::Failed { cause: error.message.clone() }
}

impl EditorLink {
    async fn ask_form(&self, Question { question, choices }: Question) -> Result<String, AskError> {
        let field = StringPropertySchema::new().title("Your answer".to_owned());
        let field = if choices.is_empty() { field } else { field.enum_values(choices) };
        let schema = ElicitationSchema::new().property(ANSWER, field, true);
        let mode = ElicitationFormMode::new(ElicitationSessionScope::new(self.session.clone()), schema);
        let asked = self.to.send_request(CreateElicitationRequest::new(mode, question)).block_task().await;
        match asked.map_err(|error| connection_failed(&error))?.action {
            ElicitationAction::Accept(accepted) => match accepted.content.unwrap_or_default().remove(ANSWER) {
                Some(ElicitationContentValue::String(answer)) => Ok(answer),
                Some(
                    ElicitationContentValue::Integer(_)
                    | ElicitationContentValue::Number(_)
                    | ElicitationContentValue::Boolean(_)
                    | ElicitationContentValue::StringArray(_),
                )
                | Some(_)
                | None => Err(refused_answer("the form came back without an answer")),
            },
            ElicitationAction::Decline => Err(refused_answer("the question was declined")),
            ElicitationAction::Cancel | ElicitationAction::Other(_) | _ => Err(refused_answer("no answer was given")),
        }
    }

    /// Asks with buttons, for an editor without forms.
    async fn ask_choice(&self, call: ToolCallId, Question { question, choices }: Question) -> Result<String, AskError> {
        let options = choices.iter().enumerate().map(|(at, choice)| {
            PermissionOption::new(format!("choice-{at}"), choice.clone(), PermissionOptionKind::AllowOnce)
        });
        let update = session_updates::approval_update(
            &CallPaths::default(),
            call,
            "ask_human",
            &serde_json::json!({"question": question, "choices": choices}),
            vec![ToolCallContent::from(question.as_str())],
        );
        let request = RequestPermissionRequest::new(self.session.clone(), update, options.collect());
        let answer = self.to.send_request(request).block_task().await.map_err(|error| connection_failed(&error))?;
        match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => {
                let at = selected.option_id.0.strip_prefix("choice-").and_then(|at| at.parse::<usize>().ok());
                let chosen = at.and_then(|at| choices.get(at).cloned());
                chosen.ok_or_else(|| refused_answer("an answer came back that was not offered"))
            }
            RequestPermissionOutcome::Cancelled | _ => Err(refused_answer("no answer was given")),
        }
    }
}

/// The approvals of the user for the calls of one prompt.
#[derive(Debug, Default)]
pub(super) struct Approvals {
    /// The gates that need no further approval in this prompt.
    granted: BTreeSet<String>,
}

/// The result of an approval question.
pub(super) enum ApprovalAnswer {
    Decided(HumanDecision),
    /// The prompt was cancelled.
    Cancelled,
}

impl Approvals {
    pub(super) async fn ask(
        &mut self,
        line: &EditorLink,
        told: &SessionUpdater,
        places: &CallPaths,
        call: &PendingApproval,
    ) -> Result<ApprovalAnswer, agent_client_protocol::Error> {
        let person = Actor::new("person at the editor").expect("a short name");
        // A call that costs something or affects later casts is asked about each time.
        let dangers = danger_sentences(&call.reasons);
        let each_time = call.cost.is_some() || !dangers.is_empty();
        if !each_time && self.granted.contains(&call.gate) {
            return Ok(ApprovalAnswer::Decided(HumanDecision::approve(person)));
        }
        let id = told.open_call(&call.gate, &call.args);
        let id = id.unwrap_or_else(|| ToolCallId::new(call.approval_id.to_string()));
        let mut shows = difference(places, call).into_iter().collect::<Vec<_>>();
        if let Some(cost) = &call.cost {
            shows.push(ToolCallContent::from(format!("It may cost up to {cost}.")));
        }
        shows.extend(dangers.iter().map(|danger| ToolCallContent::from(danger.as_str())));
        if let Some(remedy) = trifecta_remedy(&call.reasons) {
            let why = format!("It would join private data, untrusted content and a way out; {remedy}.");
            shows.push(ToolCallContent::from(why));
        }
        if let Some(code) = &call.reason_code {
            shows.push(ToolCallContent::from(format!("Reason: {code}")));
        }
        let mut options = vec![PermissionOption::new(ONCE, "Allow once", PermissionOptionKind::AllowOnce)];
        if !each_time {
            let name = format!("Allow {} for this prompt", call.gate);
            options.push(PermissionOption::new(FOR_THE_PROMPT, name, PermissionOptionKind::AllowAlways));
        }
        options.push(PermissionOption::new(REFUSE, "Refuse", PermissionOptionKind::RejectOnce));
        let update = session_updates::approval_update(places, id, &call.gate, &call.args, shows);
        let request = RequestPermissionRequest::new(line.session.clone(), update, options);
        let answer = line.to.send_request(request).block_task().await?;
        Ok(match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => match &*selected.option_id.0 {
                ONCE => ApprovalAnswer::Decided(HumanDecision::approve(person)),
                FOR_THE_PROMPT => {
                    self.granted.insert(call.gate.clone());
                    ApprovalAnswer::Decided(HumanDecision::approve(person))
                }
                _ => ApprovalAnswer::Decided(HumanDecision::refuse(person, "refused at the editor")),
            },
            RequestPermissionOutcome::Cancelled | _ => ApprovalAnswer::Cancelled,
        })
    }
}

/// Returns the change that the call would make to a file.
fn difference(places: &CallPaths, call: &PendingApproval) -> Option<ToolCallContent> {
    let roots = GateRoots::from_folders(places.roots.iter().cloned());
    let edit = edit_of(&roots, call, ACP_DIFF_BYTES_MAX)?;
    Some(ToolCallContent::Diff(Diff::new(edit.file, edit.after).old_text(edit.before)))
}
