//! Every crystal keeps every promise of the contract.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::time::Duration;

use cantrip_canon::{IdSource, Timestamp};
use cantrip_crystal::conformance::{Behaviour, Subject};
use cantrip_crystal::{AnyCrystal, ProgramCrystal, ReplayCrystal, Response, Script, ScriptedCrystal};
use serde_json::json;

use crate::thread;

struct AScript;

impl Subject for AScript {
    const SKIPS: &[Behaviour] = &[];

    async fn crystal(&self, lesson: Behaviour) -> Option<AnyCrystal> {
        let text = Response::text("three words here");
        let response = match lesson {
            Behaviour::Text => text,
            Behaviour::Thinking => Response { thinking: Some("let me count".into()), ..text },
            Behaviour::Calls => text.and_call("c1", "read", json!({"path": "a"})).and_call("c2", "done", json!({})),
            Behaviour::Broken => Response { break_after: Some(2), ..text },
            Behaviour::Stuck => Response { pace: Duration::from_secs(86_400), ..text },
        };
        Some(AnyCrystal::new(ScriptedCrystal::new("scripted/a.yaml", Script::new([response.clone(), response]))))
    }
}

struct AThread;

impl Subject for AThread {
    const SKIPS: &[Behaviour] = &[Behaviour::Broken, Behaviour::Stuck];

    async fn crystal(&self, lesson: Behaviour) -> Option<AnyCrystal> {
        let mut said = thread::utterance("three words here");
        match lesson {
            Behaviour::Text => {}
            Behaviour::Thinking => said.thinking = Some("let me count".into()),
            Behaviour::Calls => said.calls = vec![thread::call("c1", json!({"path": "a"}))],
            Behaviour::Broken | Behaviour::Stuck => return None,
        }
        let ids = IdSource::seeded(3);
        let turns = [said.clone(), said].map(|said| thread::turn(ids.next(Timestamp::EPOCH), Some(said)));
        Some(AnyCrystal::new(ReplayCrystal::new(&thread::thread(turns.into()))))
    }
}

struct AProgram;

impl Subject for AProgram {
    const SKIPS: &[Behaviour] = &[Behaviour::Text, Behaviour::Thinking, Behaviour::Broken, Behaviour::Stuck];

    async fn crystal(&self, lesson: Behaviour) -> Option<AnyCrystal> {
        (lesson == Behaviour::Calls).then(|| AnyCrystal::new(ProgramCrystal::new("program/a.js", "done(1)")))
    }
}

cantrip_crystal::conformance!(scripted, AScript);
cantrip_crystal::conformance!(replaying, AThread);
cantrip_crystal::conformance!(program, AProgram);

#[cfg(feature = "http")]
use crate::server;

#[cfg(feature = "http")]
mod over_http {
    use super::server::{Served, chunks, serve, stream};
    use super::*;
    use cantrip_crystal::Hosted;
    use serde_json::Value;

    pub(crate) struct AnEndpoint;

    fn delta(delta: Value) -> Value {
        json!({"model": "small", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn end(reason: &str) -> Value {
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    }

    impl Subject for AnEndpoint {
        const SKIPS: &[Behaviour] = &[];

        async fn crystal(&self, lesson: Behaviour) -> Option<AnyCrystal> {
            let (one, two) = (delta(json!({"content": "three words"})), delta(json!({"content": " here"})));
            let thinking = delta(json!({"reasoning_content": "let me count"}));
            let call = delta(json!({"tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"path\":"}},
            ]}));
            let rest = delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": " \"a\"}"}}]}));
            let served = match lesson {
                Behaviour::Text => stream(&[one, two, end("stop")]),
                Behaviour::Thinking => stream(&[thinking, one, two, end("stop")]),
                Behaviour::Calls => stream(&[one, call, rest, end("tool_calls")]),
                Behaviour::Broken => Served::Stream(chunks(&[one, two])),
                Behaviour::Stuck => Served::Stuck(chunks(&[one])),
            };
            let (url, _) = serve([served]).await;
            Some(AnyCrystal::new(Hosted::compatible("small", &url, None).unwrap()))
        }
    }
}
#[cfg(feature = "http")]
use over_http::AnEndpoint;
#[cfg(feature = "http")]
cantrip_crystal::conformance!(compatible, AnEndpoint);
