//! The sessions of one connection: the entity and the spell of each, and whether a prompt is active.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::v1::schema::{
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption, SessionId, SessionMode,
    SessionModeState,
};
use cantrip_service::cantrip::Cancel;
use cantrip_service::cantrip::canon::{EntityId, RunId};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::{SpellCatalog, SpellSummary};

use super::session_updates::CallPaths;
use crate::limits::ACP_SESSIONS_MAX;
use crate::session_store::SessionRecord;

/// The option by which an editor chooses a spell.
pub(super) const SPELL: &str = "spell";

/// A session in the memory of the agent.
#[derive(Clone)]
pub(super) struct Session {
    /// The id of its first run, assigned before that run is cast. It is the id of the session.
    pub(super) first: RunId,
    pub(super) folder: PathBuf,
    pub(super) catalog: Arc<dyn SpellCatalog>,
    pub(super) spell: String,
    /// The entity that answers; none before the first prompt.
    pub(super) entity: Option<EntityId>,
    /// True if another spell was chosen after the entity had answered: the next prompt forks.
    pub(super) switched: bool,
    /// Cancels the active prompt.
    pub(super) busy: Option<Cancel>,
}

impl Session {
    pub(super) fn id(&self) -> SessionId {
        SessionId::new(self.first.to_string())
    }

    pub(super) fn to_record(&self) -> SessionRecord {
        SessionRecord {
            session: self.first,
            folder: self.folder.clone(),
            spell: self.spell.clone(),
            entity: self.entity,
        }
    }

    pub(super) fn places(&self) -> CallPaths {
        CallPaths { folder: self.folder.clone(), roots: self.catalog.roots(&self.spell) }
    }

    /// Returns the spells, for editors that support modes.
    pub(super) fn modes(&self) -> SessionModeState {
        let modes = self.spells().into_iter().map(|card| {
            let described = describe_spell(&card);
            SessionMode::new(card.name.clone(), card.name).description(described)
        });
        SessionModeState::new(self.spell.clone(), modes.collect())
    }

    /// Returns the spells, for editors that support options.
    pub(super) fn options(&self) -> Vec<SessionConfigOption> {
        let spells = self.spells().into_iter().map(|card| {
            let described = describe_spell(&card);
            SessionConfigSelectOption::new(card.name.clone(), card.name).description(described)
        });
        let option = SessionConfigOption::select(SPELL, "Spell", self.spell.clone(), spells.collect::<Vec<_>>())
            .category(SessionConfigOptionCategory::Mode)
            .description("The agent that answers: its model, its tools and its limits".to_owned());
        vec![option]
    }

    /// Returns the spells. A spell that no longer exists stays selected in the session.
    fn spells(&self) -> Vec<SpellSummary> {
        let mut cards = self.catalog.spells();
        if !cards.iter().any(|card| card.name == self.spell) {
            let (crystal, medium, about) = (String::new(), String::new(), "no longer available".to_owned());
            cards.insert(0, SpellSummary { name: self.spell.clone(), crystal, medium, about });
        }
        cards
    }
}

fn describe_spell(card: &SpellSummary) -> String {
    let said = [&card.about, &card.crystal, &card.medium];
    said.into_iter().filter(|said| !said.is_empty()).cloned().collect::<Vec<_>>().join(" · ")
}

/// All sessions. Cheap to clone; all clones share one map.
#[derive(Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<HashMap<RunId, Session>>>);

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<RunId, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session, replacing an idle one of the same id.
    pub(super) fn open(&self, session: Session) -> Result<(), Refusal> {
        let mut all = self.all();
        if all.get(&session.first).is_some_and(|open| open.busy.is_some()) {
            return Err(codes::busy("session", session.first.to_string(), "a prompt").into());
        }
        if all.len() >= ACP_SESSIONS_MAX && !all.contains_key(&session.first) {
            return Err(
                codes::overloaded(format!("too many open sessions (limit {ACP_SESSIONS_MAX}): close one")).into()
            );
        }
        all.insert(session.first, session);
        Ok(())
    }

    pub(super) fn find(&self, id: &SessionId) -> Result<Session, Refusal> {
        let found = parse_session_id(id).ok().and_then(|first| self.all().get(&first).cloned());
        found.ok_or_else(|| unknown_session(id))
    }

    pub(super) fn change<T>(&self, id: &SessionId, change: impl FnOnce(&mut Session) -> T) -> Result<T, Refusal> {
        let mut all = self.all();
        let found = parse_session_id(id).ok().and_then(|first| all.get_mut(&first));
        found.map(change).ok_or_else(|| unknown_session(id))
    }

    /// Begins a prompt. A session takes one prompt at a time.
    pub(super) fn begin_prompt(&self, id: &SessionId, cancel: &Cancel) -> Result<Session, Refusal> {
        self.change(id, |session| {
            if session.busy.is_some() {
                return Err(Refusal::from(codes::busy("session", session.first.to_string(), "a prompt")));
            }
            session.busy = Some(cancel.clone());
            Ok(session.clone())
        })?
    }

    pub(super) fn end_prompt(&self, id: &SessionId) {
        drop(self.change(id, |session| session.busy = None));
    }

    /// Cancels the prompt of a session, if there is one.
    pub(super) fn cancel(&self, id: &SessionId) {
        if let Ok(Some(cancel)) = self.change(id, |session| session.busy.clone()) {
            cancel.cancel();
        }
    }

    pub(super) fn close(&self, id: &SessionId) -> Result<Session, Refusal> {
        let found = parse_session_id(id).ok().and_then(|first| self.all().remove(&first));
        let session = found.ok_or_else(|| unknown_session(id))?;
        if let Some(cancel) = &session.busy {
            cancel.cancel();
        }
        Ok(session)
    }
}

/// Parses the id of the first run from a session id.
pub(super) fn parse_session_id(id: &SessionId) -> Result<RunId, Refusal> {
    id.0.parse().map_err(|_| unknown_session(id))
}

pub(super) fn unknown_session(id: &SessionId) -> Refusal {
    codes::not_found("session", id.0.to_string()).into()
}
