//! A demo of a compile: a search for better demos on a scripted landscape, and its proof on tickets that it never saw.
//!
//! A small program replaces the model. It is right about a team only if its prompt shows an answered ticket of that
//! team. The search does not know that; the trials, the scores, the evaluation and the replay are real.

use std::fmt::Write;
use std::time::Instant;

use cantrip::crystal::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Request, Response, Script, ScriptedCrystal,
};
use cantrip::loom::Message;
use cantrip::{Cancel, Runtime};
use cantrip_ds::TraceArchive;
use cantrip_ds::contract::{Signature, SignatureOrigin};
use cantrip_ds::dataset::SplitRequest;
use cantrip_ds::job::JobProgressView;
use cantrip_improve::compile::CompileRequest;
use cantrip_improve::eval::MetricChoice;
use cantrip_improve::flywheel::default_metric;
use cantrip_reply::{Guard, GuardedReply, Refusal};
use cantrip_service::wording::{interval, micro, score, short_id};
use cantrip_service::{DatasetRequest, DatasetSubject, ExampleInput, Service};
use serde_json::{Value, json};

use cantrip_terminal::present::{BOLD, DIM, colour};

const TEAMS: [&str; 4] = ["billing", "shipping", "technical", "account"];
/// The numbers of examples for making, choosing and judging prompts.
const SPLITS: [(&str, usize); 3] = [("train", 12), ("holdout", 8), ("test", 20)];
/// The number of demo sets that are tried.
const CANDIDATES: u64 = 4;
const NAME: &str = "scripted/learner";
const OPTIMISER: &str = "bootstrap_demos.v1";

/// A model that is right about the teams of which its prompt shows an answered ticket, and says `billing` to the rest.
struct Learner;

impl Crystal for Learner {
    fn name(&self) -> &str {
        NAME
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let (mut answered, mut ticket) = (String::new(), String::new());
        for message in request.messages.iter() {
            match message {
                Message::User { content } => ticket = content.text(),
                Message::Assistant { content: Some(content), .. } => answered += &content.text(),
                Message::System { .. } | Message::Assistant { content: None, .. } | Message::Tool { .. } => {}
            }
        }
        let team = TEAMS.into_iter().find(|team| ticket.contains(*team) && answered.contains(*team));
        let output = json!({"answer": {"team": team.unwrap_or(TEAMS[0])}});
        let script = Script::new([Response::call("c1", "done", output)]);
        ScriptedCrystal::new(NAME, script).ask(request, heard).await
    }

    fn price(&self) -> Price {
        Price::Free
    }
}

/// Returns the examples, each with its split.
fn examples() -> Vec<Value> {
    let splits = SPLITS.iter().flat_map(|(split, count)| std::iter::repeat_n(*split, *count));
    let example = |(number, split): (usize, &str)| {
        let team = TEAMS[number % TEAMS.len()];
        json!({"split": split, "input": {"ticket": format!("Ticket {number} for {team}")}, "expected": {"team": team}})
    };
    splits.enumerate().map(example).collect()
}

fn signature() -> Result<Signature, String> {
    let team = json!({"type": "string", "enum": TEAMS});
    Signature::builder("@demo/support", "Triage", 1)
        .description("Which team should answer a ticket?")
        .instructions("Name the team.")
        .system("{{ instructions }}")
        .user("{{ inputs.ticket }}")
        .input(json!({"type": "object", "required": ["ticket"], "properties": {"ticket": {"type": "string"}}}))
        .output(json!({"type": "object", "required": ["team"], "properties": {"team": team}}))
        .build()
        .map_err(|fault| fault.to_string())
}

/// Runs the demo. The error says what did not happen as expected.
pub(super) async fn show_compile(guard: &Guard, text: &mut String) -> Result<(), String> {
    let began = Instant::now();
    let service = Service::new(Runtime::in_memory().with_guard(guard.clone()));
    let signature = signature()?;
    let _ = require_success(service.add_signature(&signature, SignatureOrigin::Api, "demo").await)?;
    let dataset = DatasetRequest {
        subject: Some(DatasetSubject::Signature(signature.id().clone())),
        input: ExampleInput::Values(examples()),
        splits: SplitRequest { given: true, ..SplitRequest::default() },
        ..DatasetRequest::new("tickets", "demo")
    };
    let _ = require_success(service.add_dataset(dataset).await)?;

    let _ =
        writeln!(text, "{BOLD}Search for a better prompt, and prove it on examples that the search never saw{BOLD:#}");
    let _ = writeln!(text, "{DIM}The scripted model is right only about teams that its demos show.{DIM:#}\n");
    let _ = writeln!(text, "  cantrip compile Triage --dataset tickets --metric exact --optimiser {OPTIMISER}");
    let metric = default_metric(signature.output().source()).ok_or("the output has no enum")?;
    let metric = MetricChoice::Given { name: Some("exact".to_owned()), metric };
    let mut request = CompileRequest::new(signature.id().to_string(), "tickets", metric, OPTIMISER);
    request.options.insert("candidates".to_owned(), json!(CANDIDATES));
    let crystal = AnyCrystal::new(Learner);
    let predictor = service.predictor(move |_: Option<&str>| Ok(crystal.clone()), TraceArchive::inline());
    let prepared = service.prepare_compile(predictor, request).await.map_err(|refusal| refused(&refusal))?;
    let reply = service.compile(prepared, &Cancel::new(), |_: &JobProgressView| {}).await;
    let reply = require_success(reply.guarded)?;
    let report = reply.reply.data().get("report_id").and_then(Value::as_str).ok_or("there is no report")?;
    let view = service.compile_view(report).await.map_err(|refusal| refused(&refusal))?;
    let took = began.elapsed().as_millis();
    print_reply(text, &reply);

    let trials = &view.report.trials;
    let _ = writeln!(
        text,
        "    {DIM}{} trials on train, {} on holdout, {} on test, each a predict with a receipt{DIM:#}",
        trials.train, trials.holdout, trials.test
    );
    let eval = view.eval.ok_or("the winner was not tested")?;
    let (Some(winner), Some(base), Some(delta)) = (eval.report.score, eval.report.baseline, eval.report.delta) else {
        return Err("the winner was compared with nothing".to_owned());
    };
    let verdict = eval.report.verdict.map_or("undecided", |verdict| verdict.as_str());
    let _ = writeln!(
        text,
        "    {DIM}{} scores {} on test beside {}: {verdict}, difference {}{DIM:#}",
        short_id(eval.report.compiled_id.as_str()),
        score(micro(winner.mean)),
        score(micro(base.mean)),
        interval(delta.low, delta.high)
    );
    let _ = writeln!(text, "    {DIM}compiled in {took} ms; nothing was promoted{DIM:#}\n");

    let _ = writeln!(text, "  Run the search again over its recorded results: cantrip compile replay");
    print_reply(text, &require_success(service.replay_compile(report).await)?);
    let _ = writeln!(text);
    Ok(())
}

fn print_reply(text: &mut String, reply: &GuardedReply) {
    let style = colour(reply.reply.reply_type());
    let _ = writeln!(text, "    {style}{:<8}{style:#} {}", reply.reply.reply_type().word(), reply.reply.message());
}

fn require_success(guarded: GuardedReply) -> Result<GuardedReply, String> {
    if guarded.reply.reply_type().is_success() { Ok(guarded) } else { Err(guarded.reply.message()) }
}

fn refused(refusal: &Refusal) -> String {
    refusal.code().to_string()
}
