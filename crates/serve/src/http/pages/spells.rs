//! The pages of spells, and the form that casts one.

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use cantrip_pages::{Chrome, spell_page, spells_page};
use cantrip_service::CastRequest;
use cantrip_service::cantrip::reply::codes;
use cantrip_view::{CastFields, DryRunView, FieldFault, SpellView};

use super::approvals::first_fault;
use super::forms::{CONTEXT, FILE, Form, FormOutcome, PageNotice};
use super::see_other;
use super::visitor::Visitor;
use crate::limits::FORM_CONTEXT_BYTES_MAX;

pub(super) async fn list(visitor: Visitor) -> Response<Body> {
    let read = visitor.views().spells().await;
    visitor.page(read, None, |chrome, spells| spells_page(chrome, spells)).await
}

pub(super) async fn show(visitor: Visitor, Path(spell): Path<String>) -> Response<Body> {
    shown(&visitor, &spell, &CastFields::default(), &Above::default()).await
}

/// The content above and beside the form.
#[derive(Debug, Default)]
struct Above {
    faults: Vec<FieldFault>,
    refused: Option<PageNotice>,
    dry_run: Option<DryRunView>,
}

async fn shown(visitor: &Visitor, spell: &str, fields: &CastFields, above: &Above) -> Response<Body> {
    let read = visitor.views().spell(spell).await;
    let draw =
        |chrome: &Chrome<'_>, view: &SpellView| spell_page(chrome, view, fields, &above.faults, above.dry_run.as_ref());
    visitor.page(read, above.refused.as_ref(), draw).await
}

/// Casts a spell and goes to its run, or shows what a cast would send first.
pub(super) async fn cast(Path(spell): Path<String>, form: Form) -> Response<Body> {
    let visitor = form.visitor.clone();
    let fields =
        CastFields { intent: form.field("intent"), context: form.field(CONTEXT), budget: form.field("budget") };
    // A file that was chosen counts for more than the text in the field, and is not shown again.
    let read = context_file(&form).and_then(|file| match file {
        Some(context) => CastFields { context, ..fields.clone() }.read(),
        None => fields.read(),
    });
    let input = match read {
        Ok(input) => input,
        Err(faults) => {
            let refused = Some(visitor.notice(first_fault(&faults)).await);
            return shown(&visitor, &spell, &fields, &Above { faults, refused, ..Above::default() }).await;
        }
    };
    if form.is_checked("dry") {
        let above = match visitor.views().dry_run(&spell, &input.intent).await {
            Ok(dry_run) => Above { dry_run: Some(dry_run), ..Above::default() },
            Err(refusal) => Above { refused: Some(visitor.notice(refusal).await), ..Above::default() },
        };
        return shown(&visitor, &spell, &fields, &above).await;
    }
    let (service, name) = (visitor.service.clone(), spell.clone());
    let request =
        CastRequest { context: input.context, budget: input.budget, ..CastRequest::with_intent(input.intent) };
    let casting = visitor.clone();
    let cast = async move { casting.began(service.begin_cast(&name, request).await).await };
    match form.act(cast).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => {
            let faults = budget_fault(&refused);
            let above = Above { faults, refused: Some(refused), ..Above::default() };
            shown(&visitor, &spell, &fields, &above).await
        }
    }
}

/// Returns the text of the file that was chosen as the context.
fn context_file(form: &Form) -> Result<Option<String>, Vec<FieldFault>> {
    let fault = |rule: String| vec![FieldFault::new(CONTEXT, rule)];
    let longest = form.bytes(FILE).into_iter().chain(form.bytes(CONTEXT)).map(<[u8]>::len).max();
    if longest.is_some_and(|bytes| bytes > FORM_CONTEXT_BYTES_MAX) {
        return Err(fault(format!("it is longer than {FORM_CONTEXT_BYTES_MAX} bytes")));
    }
    let Some(bytes) = form.bytes(FILE) else { return Ok(None) };
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| fault("the file is not text".to_owned()))?;
    Ok(Some(text))
}

/// Says beside the field what is wrong with a budget that was refused.
fn budget_fault(refused: &PageNotice) -> Vec<FieldFault> {
    let about_money = [codes::BUDGET_SPENT.any(), codes::NOT_AUTHORIZED.any(), codes::PER_CALL.any()];
    let is_about = about_money.iter().any(|code| code.as_str() == refused.notice.code);
    is_about.then(|| FieldFault::new("budget", refused.notice.message.clone())).into_iter().collect()
}
