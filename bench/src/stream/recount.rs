//! The plain way to write an upsert processor: the text is a string, each delta counts its words anew, and each upsert
//! has a copy.
//!
//! It handles only the measured events: no timers, no limits, no cancelling, no errors. So the comparison favours it.

use std::collections::HashMap;

use cantrip_stream::{Arguments, FinalItem, Payload, StartedItem, StreamEvent};

#[derive(Default)]
pub(super) struct Recount {
    texts: HashMap<(String, String), Growing>,
    calls: HashMap<(String, String), Call>,
}

#[derive(Default)]
struct Growing {
    text: String,
    emitted: usize,
    index: usize,
}

#[derive(Clone)]
#[expect(dead_code, reason = "it is made to be sent, and nobody sends it")]
pub(super) struct Call {
    item_id: String,
    name: String,
    arguments: Arguments,
}

/// An emission for a viewer.
#[expect(dead_code, reason = "it is made to be sent, and nobody sends it")]
pub(super) enum Sent {
    Turn { turn_id: String, session_id: String },
    Text { turn_id: String, session_id: String, item_id: String, timestamp: String, text: String },
    Call { turn_id: String, session_id: String, timestamp: String, call: Call, output: Option<String> },
}

const GRADIENT: [usize; 5] = [10, 20, 40, 80, 120];

fn threshold(index: usize) -> usize {
    GRADIENT[index.min(GRADIENT.len() - 1)]
}

impl Recount {
    pub(super) fn process(&mut self, event: &StreamEvent, out: &mut Vec<Sent>) {
        let turn_id = event.turn_id.to_string();
        let session_id = event.session_id.to_string();
        let timestamp = event.timestamp.to_string();
        match &event.payload {
            Payload::ResponseStart(_) | Payload::ResponseDone(_) => out.push(Sent::Turn { turn_id, session_id }),
            Payload::ItemStart(start) => match &start.item {
                StartedItem::Message { .. } | StartedItem::Reasoning { .. } => {
                    self.texts.insert((turn_id, start.item_id.to_string()), Growing::default());
                }
                StartedItem::FunctionCall { name, call_id, .. } => {
                    let item_id = start.item_id.to_string();
                    let call = Call { item_id, name: name.to_string(), arguments: Arguments::default() };
                    self.calls.insert((turn_id.clone(), call_id.to_string()), call.clone());
                    out.push(Sent::Call { turn_id, session_id, timestamp, call, output: None });
                }
                StartedItem::FunctionCallOutput { .. } => {}
            },
            Payload::ItemDelta(delta) => {
                let item_id = delta.item_id.to_string();
                let Some(growing) = self.texts.get_mut(&(turn_id.clone(), item_id.clone())) else { return };
                growing.text.push_str(&delta.delta_content);
                let tokens = growing.text.split_whitespace().count();
                let mut rest = tokens - growing.emitted;
                if rest > threshold(growing.index) {
                    while rest > threshold(growing.index) {
                        rest -= threshold(growing.index);
                        growing.index += 1;
                    }
                    growing.emitted = tokens;
                    let text = growing.text.clone();
                    out.push(Sent::Text { turn_id, session_id, item_id, timestamp, text });
                }
            }
            Payload::ItemDone(done) => {
                let item_id = done.item_id.to_string();
                match &done.final_item {
                    FinalItem::Message { content, .. } | FinalItem::Reasoning { content, .. } => {
                        if let Some(growing) = self.texts.remove(&(turn_id.clone(), item_id.clone()))
                            && growing.text.split_whitespace().count() > growing.emitted
                        {
                            out.push(Sent::Text {
                                turn_id: turn_id.clone(),
                                session_id: session_id.clone(),
                                item_id: item_id.clone(),
                                timestamp: timestamp.clone(),
                                text: growing.text,
                            });
                        }
                        let text = content.to_string();
                        out.push(Sent::Text { turn_id, session_id, item_id, timestamp, text });
                    }
                    FinalItem::FunctionCall(done) => {
                        if let Some(call) = self.calls.get_mut(&(turn_id, done.call_id.to_string())) {
                            call.arguments = done.arguments.clone();
                        }
                    }
                    FinalItem::FunctionCallOutput(done) => {
                        if let Some(call) = self.calls.remove(&(turn_id.clone(), done.call_id.to_string())) {
                            let output = Some(done.output.to_string());
                            out.push(Sent::Call { turn_id, session_id, timestamp, call, output });
                        }
                    }
                }
            }
            Payload::ItemError(_) | Payload::ItemCancelled(_) | Payload::ResponseError(_) => {}
        }
    }
}
