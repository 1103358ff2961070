//! Which program does a text contain?
//!
//! A crystal that is offered no tools writes its program as fenced blocks, as in Markdown. Every block tagged with the
//! language counts, because models like to explain between two halves of one program. A block without a tag counts only
//! if it is the only one and no block is tagged, because otherwise it would be unclear which one was meant.

use crate::MediumKind;

/// A fenced block.
struct Block {
    /// The first word after the fence, in lower case.
    tag: String,
    text: String,
}

/// Returns the program in a text. None if the text has none, or if the medium runs no programs.
///
/// ```
/// use cantrip_circle::{MediumKind, fence};
///
/// let said = "First:\n```js\nvar x = 1\n```\nthen\n```javascript\ndone(x)";
/// assert_eq!(fence::extract_program(MediumKind::Javascript, said).as_deref(), Some("var x = 1\ndone(x)"));
/// assert_eq!(fence::extract_program(MediumKind::Javascript, "just words"), None);
/// ```
pub fn extract_program(medium: MediumKind, text: &str) -> Option<String> {
    let names: &[&str] = match medium {
        MediumKind::Javascript => &["javascript", "js"],
        MediumKind::Python => &["python", "py", "python3"],
        MediumKind::Conversation | MediumKind::Shell | MediumKind::Browser | MediumKind::Human => return None,
    };
    let blocks = blocks(text);
    let tagged: Vec<&str> =
        blocks.iter().filter(|block| names.contains(&block.tag.as_str())).map(|block| block.text.as_str()).collect();
    if !tagged.is_empty() {
        return Some(tagged.join("\n"));
    }
    let mut untagged = blocks.into_iter().filter(|block| block.tag.is_empty());
    match (untagged.next(), untagged.next()) {
        (Some(only), None) => Some(only.text),
        (Some(_), Some(_)) | (None, _) => None,
    }
}

/// The opening of a block: its character, its length, its indentation and its tag.
struct Fence {
    mark: char,
    length: usize,
    indent: usize,
    tag: String,
}

fn fence(line: &str) -> Option<Fence> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let rest = &line[indent..];
    let mark = rest.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let length = rest.len() - rest.trim_start_matches(mark).len();
    let info = rest[length..].trim();
    // A fence has at least three characters. A line with more backticks later is inline code.
    if length < 3 || (mark == '`' && info.contains('`')) {
        return None;
    }
    let tag = info.split_whitespace().next().unwrap_or_default().trim_matches(['{', '}', '.']).to_lowercase();
    Some(Fence { mark, length, indent, tag })
}

fn closes(line: &str, open: &Fence) -> bool {
    let rest = line.trim();
    rest.len() >= open.length && rest.chars().all(|mark| mark == open.mark)
}

/// Returns the blocks of a text in order; the last one may have no end.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Fence, Vec<&str>)> = None;
    for line in text.lines() {
        match &mut open {
            None => open = fence(line).map(|fence| (fence, Vec::new())),
            Some((fence, _)) if closes(line, fence) => blocks.extend(open.take().map(close_block)),
            Some((fence, lines)) => {
                let spaces = line.len() - line.trim_start_matches(' ').len();
                lines.push(&line[spaces.min(fence.indent)..]);
            }
        }
    }
    blocks.extend(open.map(close_block));
    blocks
}

fn close_block((fence, lines): (Fence, Vec<&str>)) -> Block {
    Block { tag: fence.tag, text: lines.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::extract_program;
    use crate::MediumKind::{Conversation, Javascript, Python};

    fn js(text: &str) -> Option<String> {
        extract_program(Javascript, text)
    }

    #[test]
    fn tagged_blocks_are_joined_and_others_are_words() {
        let said = "a\n```javascript\nvar a = 1\n```\nb\n```json\n{}\n```\n```js\na\n```\n```\nloose\n```";
        assert_eq!(js(said).as_deref(), Some("var a = 1\na"));
        assert_eq!(extract_program(Python, "```py\nx = 1\n```\n~~~python\nx\n~~~").as_deref(), Some("x = 1\nx"));
        assert_eq!(extract_program(Python, said), Some("loose".to_owned()));
    }

    #[test]
    fn one_untagged_block_counts_and_two_do_not() {
        assert_eq!(js("```\n1 + 1\n```").as_deref(), Some("1 + 1"));
        assert_eq!(js("```\n1\n```\n```\n2\n```"), None);
        assert_eq!(js("```json\n1\n```"), None);
    }

    #[test]
    fn an_unclosed_fence_runs_to_the_end_and_a_longer_one_holds_a_shorter() {
        assert_eq!(js("```js\nvar a = `x`\na").as_deref(), Some("var a = `x`\na"));
        assert_eq!(js("````js\n```\nx\n```\n````").as_deref(), Some("```\nx\n```"));
        assert_eq!(js("~~~js\n```\n~~~").as_deref(), Some("```"));
        assert_eq!(js("  ```js\n    if (1)\n  x\n  ```").as_deref(), Some("  if (1)\nx"));
    }

    #[test]
    fn words_hold_no_program() {
        assert_eq!(js("I would call `done`. ```js done(1)``` is how."), None);
        assert_eq!(js("``js\n1\n``"), None);
        assert_eq!(js(""), None);
        assert_eq!(extract_program(Conversation, "```js\n1\n```"), None);
    }
}
