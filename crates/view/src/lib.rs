//! Views: what a person looks at, as typed values.
//!
//! Each view is read through the [`Service`] of an owner, so nobody sees what another owner did. A surface turns a view
//! into markup or lines and reads nothing itself.
//!
//! Secrets are taken out of every text here, before any surface sees it. To redact in each surface was rejected: one
//! that forgot it would show them.

mod activity;
pub mod command;
mod compare;
mod diff;
mod export;
mod files;
mod forms;
mod grep;
mod head;
mod items;
pub mod limits;
mod looms;
mod model;
mod newest;
mod notes;
mod now;
mod open_turns;
mod pending;
mod proposal;
mod records;
mod redact;
mod rewind;
mod runs;
mod spells;
mod thread;
mod trifecta;
mod waiting;

use cantrip_service::Service;
use cantrip_service::cantrip::canon::Redactor;
use cantrip_service::cantrip::loom::{AnyLoom, Error};
use cantrip_service::cantrip::reply::Refusal;
use cantrip_service::cantrip::store_refusal;

pub use diff::{Diff, DiffPair, DiffPart, DiffPlace, DiffShared, DiffSide, closing_text};
pub use export::{ExportFormat, ExportLines};
pub use forms::{
    CastFields, CastInput, ContinueFields, ContinueInput, DecideFields, DecideInput, FieldFault, ForkFields, ForkInput,
    RewardFields, RewardInput,
};
pub use items::{ProgramItem, TurnItem, item_text, output_text, turn_items, value_text};
pub use model::*;
pub use proposal::{CallPlaces, FileEdit, danger_sentences, edit_of, subject_of, trifecta_remedy};

/// The views of one owner's service.
#[derive(Debug, Clone)]
pub struct Views<'a> {
    service: &'a Service,
    /// None shows texts as they are stored.
    redactor: Option<Redactor>,
}

impl<'a> Views<'a> {
    /// Returns the views of a service, without secrets.
    pub fn of(service: &'a Service) -> Self {
        Self { service, redactor: Some(service.runtime().guard().redactor().clone()) }
    }

    /// Returns views that show texts as they are stored. They are for a caller who holds the store itself, and for no
    /// page.
    #[must_use]
    pub fn with_secrets(self) -> Self {
        Self { redactor: None, ..self }
    }

    pub fn service(&self) -> &'a Service {
        self.service
    }

    pub(crate) fn loom(&self) -> &'a AnyLoom {
        self.service.runtime().loom()
    }
}

/// Returns the refusal for an error of the store.
pub(crate) fn stored(error: Error) -> Refusal {
    store_refusal(&error)
}
