//! In which order did the blocks of an answer arrive, and which of them can only their provider read?
//!
//! A provider that signs or encrypts its thinking wants it back unmodified, before the same calls, in the same order.
//! The provider's own blocks are kept verbatim. For text and calls between them only the position is kept, since the
//! utterance already holds their content. An answer without such blocks needs none of this.

use cantrip_loom::{Content, GateCall, Maker, ProviderParts};
use serde_json::{Map, Value, json};

use crate::Cause;
use crate::limits::ANSWER_BYTES_MAX;

/// One block of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block<'a> {
    /// A block of the provider's own format, verbatim.
    Own(&'a Value),
    /// Text of the utterance, with data that its provider attached to it.
    Text(&'a str, Option<&'a Map<String, Value>>),
    /// A call of the utterance, with data that its provider attached to it.
    Call(&'a GateCall, Option<&'a Map<String, Value>>),
}

/// Records the order of blocks while an answer arrives.
#[derive(Debug, Default)]
pub(crate) struct BlockOrder {
    blocks: Vec<Value>,
    bytes: usize,
    /// True if a block or an attachment of the provider's own was recorded.
    own: bool,
}

impl BlockOrder {
    pub(crate) fn own(&mut self, block: Value) -> Result<(), Cause> {
        self.hold(&block)?;
        self.blocks.push(json!({ "own": block }));
        Ok(())
    }

    /// Records more text. It joins the preceding text block unless data is attached to that block.
    pub(crate) fn text(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        match self.blocks.last_mut() {
            Some(Value::Object(last)) if last.contains_key("text") && !last.contains_key("with") => {
                let before = last["text"].as_u64().unwrap_or(0);
                last.insert("text".to_owned(), (before + piece.len() as u64).into());
            }
            Some(_) | None => self.blocks.push(json!({ "text": piece.len() })),
        }
    }

    /// Records the call with this index in the utterance, counted from 0.
    pub(crate) fn call(&mut self, number: usize) {
        self.blocks.push(json!({ "call": number }));
    }

    /// Records text with data that its provider attached. It stays a separate block: if it were joined with other text,
    /// the attached data would apply to more text than it came with.
    pub(crate) fn text_with(&mut self, piece: &str, key: &str, value: &Value) -> Result<(), Cause> {
        self.blocks.push(json!({ "text": piece.len() }));
        self.attach(key, value)
    }

    /// Attaches data of the provider to the last block of text or call.
    pub(crate) fn attach(&mut self, key: &str, value: &Value) -> Result<(), Cause> {
        self.hold(value)?;
        if let Some(Value::Object(last)) = self.blocks.last_mut() {
            let with = last.entry("with").or_insert_with(|| json!({}));
            with[key] = value.clone();
        }
        Ok(())
    }

    fn hold(&mut self, value: &Value) -> Result<(), Cause> {
        self.own = true;
        self.bytes += value.to_string().len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(Cause::TooLarge { limit: ANSWER_BYTES_MAX, unit: "bytes" });
        }
        Ok(())
    }

    /// Returns the parts that must be sent back, if there are any.
    pub(crate) fn parts(self, maker: &Maker) -> Option<ProviderParts> {
        self.own.then(|| ProviderParts { maker: maker.clone(), parts: json!({ "order": self.blocks }) })
    }
}

/// Returns the blocks of an utterance in the order recorded in `own` if that order fits, else the text followed by the
/// calls. No text and no call is ever left out. Each wire protocol decides which parts count as its own.
pub(crate) fn blocks<'a>(
    content: Option<&'a str>,
    calls: &'a [GateCall],
    own: Option<&'a ProviderParts>,
) -> Vec<Block<'a>> {
    let told = own.and_then(|own| own.parts["order"].as_array());
    told.and_then(|told| blocks_in_order(told, content.unwrap_or_default(), calls)).unwrap_or_else(|| {
        let text = content.filter(|text| !text.trim().is_empty()).map(|text| Block::Text(text, None));
        text.into_iter().chain(calls.iter().map(|call| Block::Call(call, None))).collect()
    })
}

fn blocks_in_order<'a>(told: &'a [Value], content: &'a str, calls: &'a [GateCall]) -> Option<Vec<Block<'a>>> {
    let (mut at, mut called) = (0, 0);
    // Whitespace-only text is left out of a list. The blocks around it are still sent back.
    let blank = content.trim().is_empty();
    let mut blocks = Vec::with_capacity(told.len());
    for block in told {
        let with = block["with"].as_object();
        if let Some(own) = block.get("own") {
            blocks.push(Block::Own(own));
        } else if let (true, Some(_)) = (blank, block["text"].as_u64()) {
            blocks.push(Block::Text("", with));
        } else if let Some(bytes) = block["text"].as_u64() {
            let text = content.get(at..at + usize::try_from(bytes).ok()?)?;
            at += text.len();
            blocks.push(Block::Text(text, with));
        } else {
            // Each call occurs once, in order: every tool result needs its call.
            let number = usize::try_from(block["call"].as_u64()?).ok()?;
            blocks.push(Block::Call(calls.get(number).filter(|_| number == called)?, with));
            called += 1;
        }
    }
    ((blank || at == content.len()) && called == calls.len()).then_some(blocks)
}

/// Returns the text of a content; content that is text only is returned byte for byte.
pub(crate) fn text_of(content: Option<&Content>) -> Option<String> {
    content.map(Content::text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Vec<GateCall> {
        let call = |id: &str| GateCall { tool_call_id: id.into(), gate: "read".into(), args: json!({}) };
        vec![call("a"), call("b")]
    }

    #[test]
    fn what_was_noted_comes_back_in_its_order() {
        let mut order = BlockOrder::default();
        order.own(json!({"type": "thinking"})).unwrap();
        order.text("one ");
        order.text("two");
        order.call(0);
        order.attach("signature", &json!("s")).unwrap();
        order.text("three");
        order.call(1);
        let parts = order.parts(&Maker::new("p/m"));
        let calls = calls();
        let thinking = json!({"type": "thinking"});
        let signed = Map::from_iter([("signature".to_owned(), json!("s"))]);
        let expected = [
            Block::Own(&thinking),
            Block::Text("one two", None),
            Block::Call(&calls[0], Some(&signed)),
            Block::Text("three", None),
            Block::Call(&calls[1], None),
        ];
        assert_eq!(blocks(Some("one twothree"), &calls, parts.as_ref()), expected);
    }

    #[test]
    fn parts_that_do_not_fit_are_left_and_nothing_said_is_lost() {
        let mut order = BlockOrder::default();
        order.own(json!("mine")).unwrap();
        order.text("five!");
        order.call(0);
        let parts = order.parts(&Maker::new("p/m"));
        let calls = calls();
        let plain = [Block::Text("five!", None), Block::Call(&calls[0], None), Block::Call(&calls[1], None)];
        for own in [None, parts.as_ref()] {
            assert_eq!(blocks(Some("five!"), &calls, own), plain);
        }
        assert_eq!(blocks(Some("six"), &calls[..1], parts.as_ref()).len(), 2, "another text");
        assert_eq!(blocks(Some("five!"), &calls[..1], parts.as_ref()).len(), 3);
    }

    #[test]
    fn a_blank_text_that_the_list_left_out_takes_nothing_else_with_it() {
        let mut order = BlockOrder::default();
        order.own(json!("mine")).unwrap();
        order.text("\n\n");
        order.call(0);
        order.call(1);
        let parts = order.parts(&Maker::new("p/m"));
        let (calls, mine) = (calls(), json!("mine"));
        let given =
            [Block::Own(&mine), Block::Text("", None), Block::Call(&calls[0], None), Block::Call(&calls[1], None)];
        assert_eq!(blocks(None, &calls, parts.as_ref()), given);
    }

    #[test]
    fn text_with_something_attached_is_not_joined_with_the_text_around_it() {
        let mut order = BlockOrder::default();
        order.text("one ");
        order.text_with("two", "signature", &json!("s")).unwrap();
        order.text(" three");
        let parts = order.parts(&Maker::new("p/m"));
        let signed = Map::from_iter([("signature".to_owned(), json!("s"))]);
        let given = [Block::Text("one ", None), Block::Text("two", Some(&signed)), Block::Text(" three", None)];
        assert_eq!(blocks(Some("one two three"), &[], parts.as_ref()), given);
    }

    #[test]
    fn an_answer_without_anything_of_its_providers_own_keeps_no_parts() {
        let mut order = BlockOrder::default();
        order.text("a");
        order.call(0);
        assert_eq!(order.parts(&Maker::new("p/m")), None);
    }
}
