//! Every crystal keeps every promise of the contract.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::time::Duration;

use cantrip_canon::{IdSource, Timestamp};
use cantrip_crystal::conformance::{Lesson, Subject};
use cantrip_crystal::{AnyCrystal, Programmed, Replaying, Response, Script, Scripted};
use serde_json::json;

use crate::thread;

struct AScript;

impl Subject for AScript {
    const SKIPS: &[Lesson] = &[];

    async fn crystal(&self, lesson: Lesson) -> Option<AnyCrystal> {
        let text = Response::text("three words here");
        let response = match lesson {
            Lesson::Text => text,
            Lesson::Thinking => Response { thinking: Some("let me count".into()), ..text },
            Lesson::Calls => text.and_call("c1", "read", json!({"path": "a"})).and_call("c2", "done", json!({})),
            Lesson::Broken => Response { break_after: Some(2), ..text },
            Lesson::Stuck => Response { pace: Duration::from_secs(86_400), ..text },
        };
        Some(AnyCrystal::new(Scripted::new("scripted/a.yaml", Script::new([response.clone(), response]))))
    }
}

struct AThread;

impl Subject for AThread {
    const SKIPS: &[Lesson] = &[Lesson::Broken, Lesson::Stuck];

    async fn crystal(&self, lesson: Lesson) -> Option<AnyCrystal> {
        let mut said = thread::utterance("three words here");
        match lesson {
            Lesson::Text => {}
            Lesson::Thinking => said.thinking = Some("let me count".into()),
            Lesson::Calls => said.calls = vec![thread::call("c1", json!({"path": "a"}))],
            Lesson::Broken | Lesson::Stuck => return None,
        }
        let ids = IdSource::seeded(3);
        let turns = [said.clone(), said].map(|said| thread::turn(ids.next(Timestamp::EPOCH), Some(said)));
        Some(AnyCrystal::new(Replaying::new(&thread::thread(turns.into()))))
    }
}

struct AProgram;

impl Subject for AProgram {
    const SKIPS: &[Lesson] = &[Lesson::Text, Lesson::Thinking, Lesson::Broken, Lesson::Stuck];

    async fn crystal(&self, lesson: Lesson) -> Option<AnyCrystal> {
        (lesson == Lesson::Calls).then(|| AnyCrystal::new(Programmed::new("program/a.js", "done(1)")))
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
    use cantrip_crystal::Compatible;
    use serde_json::Value;

    pub(crate) struct AnEndpoint;

    fn delta(delta: Value) -> Value {
        json!({"model": "small", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn end(reason: &str) -> Value {
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    }

    impl Subject for AnEndpoint {
        const SKIPS: &[Lesson] = &[];

        async fn crystal(&self, lesson: Lesson) -> Option<AnyCrystal> {
            let (one, two) = (delta(json!({"content": "three words"})), delta(json!({"content": " here"})));
            let thinking = delta(json!({"reasoning_content": "let me count"}));
            let call = delta(json!({"tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"path\":"}},
            ]}));
            let rest = delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": " \"a\"}"}}]}));
            let served = match lesson {
                Lesson::Text => stream(&[one, two, end("stop")]),
                Lesson::Thinking => stream(&[thinking, one, two, end("stop")]),
                Lesson::Calls => stream(&[one, call, rest, end("tool_calls")]),
                Lesson::Broken => Served::Stream(chunks(&[one, two])),
                Lesson::Stuck => Served::Stuck(chunks(&[one])),
            };
            let (url, _) = serve([served]).await;
            Some(AnyCrystal::new(Compatible::new("small", &url, None).unwrap()))
        }
    }
}
#[cfg(feature = "http")]
use over_http::AnEndpoint;
#[cfg(feature = "http")]
cantrip_crystal::conformance!(compatible, AnEndpoint);
