//! rig: its agent with one tool and a scripted model. `rig-peer loop turns=200` prints one line of JSON, as the
//! program of every peer does.

#[expect(dead_code, reason = "shared with benches that measure what does not pack, too")]
#[path = "../../../src/said.rs"]
mod said;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream;
use rig_agent::completion::{CompletionRequest, CompletionResponse, Usage};
use rig_agent::tool::{Tool, ToolContext};
use rig_agent::{Agent, AgentBuilder};
use rig_core::driver::{Exchange, Model, Opened, Opening, Transport};
use rig_core::message::{AssistantContent, Message, Origin, ToolCall, ToolFunction, ToolName};
use rig_core::test_utils::{MockFrame, MockScript};
use serde_json::{Value, json};

/// The warm-up turns of an agent.
const WARM_TURNS: u64 = 2;

/// The result of the tool for each turn, made before the clock starts.
static RESULTS: OnceLock<Vec<String>> = OnceLock::new();

/// The number of calls of the tool.
static CALLS: AtomicU64 = AtomicU64::new(0);

#[derive(serde::Deserialize)]
struct Which {
    n: u64,
}

#[derive(Clone)]
struct Look;

impl Tool for Look {
    const NAME: &'static str = "look";
    type Args = Which;
    type Output = String;
    type Error = Infallible;

    fn description(&self) -> String {
        "Looks something up.".to_owned()
    }

    fn parameters(&self) -> Value {
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    }

    async fn call(&self, _: &mut ToolContext, which: Which) -> Result<String, Infallible> {
        CALLS.fetch_add(1, Ordering::Relaxed);
        Ok(RESULTS.get().and_then(|results| results.get(usize::try_from(which.n).ok()?)).cloned().unwrap_or_default())
    }
}

/// Calls the tool until its turns are over. It serializes the whole list as JSON each time, as for a provider.
#[derive(Clone)]
struct Scripted {
    turns: u64,
    latency: Duration,
}

impl Scripted {
    fn says(&self, request: &CompletionRequest) -> AssistantContent {
        let body = serde_json::to_vec(&request.chat_history).expect("a list can be written");
        let at = request.chat_history.iter().filter(|message| matches!(message, Message::Assistant { .. })).count() as u64;
        if at >= self.turns {
            return AssistantContent::text(format!("done after {} bytes", body.len()));
        }
        let look = ToolName::new("look").expect("a name");
        AssistantContent::ToolCall(ToolCall::from_wire(format!("call_{at}"), ToolFunction::new(look, json!({"n": at}))))
    }
}

impl Transport<MockScript> for Scripted {
    fn send(&self, request: CompletionRequest, _: Exchange) -> Opening<MockFrame> {
        let this = self.clone();
        Opening::new(async move {
            if !this.latency.is_zero() {
                tokio::time::sleep(this.latency).await;
            }
            let said = vec![this.says(&request)];
            let origin = Origin::new("scripted", "scripted", "");
            let response = CompletionResponse::new(said, Usage::new().total_tokens(1), origin, Value::Null);
            Ok(Opened::new(stream::iter([Ok(MockFrame::Response(Box::new(response)))])))
        })
    }
}

fn agent(turns: u64, latency: Duration) -> Agent {
    let model = Model::new(MockScript::new("scripted"), Scripted { turns, latency });
    AgentBuilder::named_model("scripted", model).preamble("You look things up.").tool(Look).build()
}

/// The processor time of all threads of this process, if the system reports it (Linux).
fn processor() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = |task: std::fs::DirEntry| {
        let told = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        told.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(nanos).sum())
}

fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok())
}

async fn prompted(agent: &Agent, turns: u64) {
    let most = usize::try_from(turns).expect("short") + 10;
    agent.prompt("go").max_turns(most).await.expect("an answer");
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let given = arguments.filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), value.parse::<u64>().ok()?))
    });
    let given: HashMap<String, u64> = given.collect();
    let of = |key: &str, otherwise: u64| given.get(key).copied().unwrap_or(otherwise);
    let (turns, agents, latency) = (of("turns", 1), of("agents", 1), Duration::from_millis(of("latency_ms", 0)));
    // In a fleet the last request of an agent ends it.
    let calls = if name == "fleet" { turns - 1 } else { turns };
    RESULTS.set((0..turns.max(WARM_TURNS)).map(said::words).collect()).expect("once");
    if name == "loop" {
        prompted(&agent(WARM_TURNS, Duration::ZERO), WARM_TURNS).await;
        CALLS.store(0, Ordering::Relaxed);
    }
    let agent = agent(calls, latency);
    let (wall, cpu) = (Instant::now(), processor());
    join_all((0..agents).map(|_| prompted(&agent, calls))).await;
    let took = json!({
        "wall": wall.elapsed().as_secs_f64(),
        "cpu": processor().saturating_sub(cpu).as_secs_f64(),
        "turns": turns * agents,
        "ideal": turns as f64 * latency.as_secs_f64(),
        "peak_kib": peak_kib(),
    });
    assert_eq!(CALLS.load(Ordering::Relaxed), calls * agents);
    println!("{took}");
}
