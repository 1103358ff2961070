//! Markdown of what an entity said, written by templates of our own.
//!
//! Every event of the parser is matched, and each becomes an element of this file or text. Nothing is loaded: an image
//! is its words and its host. A link shows where it leads. Raw HTML is the text that it is. The text is first made into
//! a bounded tree, so that it can neither nest nor repeat without end; a text beyond the bounds is shown as it is.

use maud::{Markup, html};
use pulldown_cmark::{CodeBlockKind, CowStr, Event, HeadingLevel, Options, Parser, Tag};
use url::Url;

use super::{paint, prose, visible_text};
use crate::limits::{MARKDOWN_BYTES_MAX, MARKDOWN_DEPTH_MAX, MARKDOWN_NODES_MAX};

#[derive(Debug)]
enum Node<'a> {
    Text(CowStr<'a>),
    Code(CowStr<'a>),
    Space,
    Break,
    Rule,
    Element(Kind<'a>, Vec<Node<'a>>),
}

#[derive(Debug)]
enum Kind<'a> {
    Paragraph,
    /// The level below the heading of the turn, from 3 to 6.
    Heading(usize),
    Quote,
    CodeBlock(CowStr<'a>),
    List(Option<u64>),
    Item,
    Table,
    TableHead,
    TableRow,
    TableCell,
    Emphasis,
    Strong,
    Link(CowStr<'a>),
    Image(CowStr<'a>),
    /// Its content stands for itself.
    Nothing,
}

/// Returns text as Markdown, or as plain text if it is too long or too deeply nested.
pub(crate) fn markdown(text: &str) -> Markup {
    match tree(text) {
        Some(nodes) => html! { @for node in &nodes { (write(node, false)) } },
        None => html! { p class="plain" { (prose(text)) } },
    }
}

/// Returns the text as a tree; none if it exceeds a bound.
fn tree(text: &str) -> Option<Vec<Node<'_>>> {
    if text.len() > MARKDOWN_BYTES_MAX {
        return None;
    }
    let mut headings: Vec<HeadingLevel> = Vec::new();
    let mut open: Vec<(Kind<'_>, Vec<Node<'_>>)> = vec![(Kind::Nothing, Vec::new())];
    for (count, event) in Parser::new_ext(text, Options::ENABLE_TABLES).enumerate() {
        if count > MARKDOWN_NODES_MAX || open.len() > MARKDOWN_DEPTH_MAX {
            return None;
        }
        let node = match event {
            Event::Start(tag) => {
                open.push((kind(tag, &mut headings), Vec::new()));
                continue;
            }
            Event::End(_) => {
                let (kind, nodes) = open.pop()?;
                Node::Element(kind, nodes)
            }
            Event::Text(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::FootnoteReference(text) => Node::Text(text),
            Event::Code(text) => Node::Code(text),
            Event::SoftBreak => Node::Space,
            Event::HardBreak => Node::Break,
            Event::Rule => Node::Rule,
            Event::TaskListMarker(is_done) => Node::Text(if is_done { "[x] ".into() } else { "[ ] ".into() }),
        };
        open.last_mut()?.1.push(node);
    }
    Some(open.pop()?.1)
}

/// Returns the element of a tag. No id, class or attribute of the text is taken over.
fn kind<'a>(tag: Tag<'a>, headings: &mut Vec<HeadingLevel>) -> Kind<'a> {
    match tag {
        Tag::Heading { level, .. } => {
            // A heading is one below the heading that it stands under, so that no level is left out.
            headings.retain(|above| *above < level);
            headings.push(level);
            Kind::Heading((headings.len() + 2).min(6))
        }
        Tag::Paragraph | Tag::HtmlBlock => Kind::Paragraph,
        Tag::BlockQuote(_) => Kind::Quote,
        Tag::CodeBlock(CodeBlockKind::Fenced(name)) => Kind::CodeBlock(name),
        Tag::CodeBlock(CodeBlockKind::Indented) => Kind::CodeBlock("".into()),
        Tag::List(first) => Kind::List(first),
        Tag::Item => Kind::Item,
        Tag::Table(_) => Kind::Table,
        Tag::TableHead => Kind::TableHead,
        Tag::TableRow => Kind::TableRow,
        Tag::TableCell => Kind::TableCell,
        Tag::Emphasis => Kind::Emphasis,
        Tag::Strong => Kind::Strong,
        Tag::Link { dest_url, .. } => Kind::Link(dest_url),
        Tag::Image { dest_url, .. } => Kind::Image(dest_url),
        Tag::Strikethrough
        | Tag::Superscript
        | Tag::Subscript
        | Tag::FootnoteDefinition(_)
        | Tag::DefinitionList
        | Tag::DefinitionListTitle
        | Tag::DefinitionListDefinition
        | Tag::MetadataBlock(_) => Kind::Nothing,
    }
}

/// Returns a node as markup. The depth of the tree is bounded, so this ends.
fn write(node: &Node<'_>, in_head: bool) -> Markup {
    match node {
        Node::Text(text) => html! { (prose(text)) },
        Node::Code(text) => html! { code { (visible_text(text)) } },
        Node::Space => html! { "\n" },
        Node::Break => html! { br; },
        Node::Rule => html! { hr; },
        Node::Element(kind, nodes) => element(kind, nodes, in_head),
    }
}

fn element(kind: &Kind<'_>, nodes: &[Node<'_>], in_head: bool) -> Markup {
    let in_head = in_head || matches!(kind, Kind::TableHead);
    let inner = html! { @for node in nodes { (write(node, in_head)) } };
    match kind {
        Kind::Paragraph => html! { p { (inner) } },
        Kind::Heading(3) => html! { h3 { (inner) } },
        Kind::Heading(4) => html! { h4 { (inner) } },
        Kind::Heading(5) => html! { h5 { (inner) } },
        Kind::Heading(_) => html! { h6 { (inner) } },
        Kind::Quote => html! { blockquote { (inner) } },
        Kind::CodeBlock(name) => code_block(name, &text_of(nodes)),
        Kind::List(None) => html! { ul { (inner) } },
        Kind::List(Some(1)) => html! { ol { (inner) } },
        Kind::List(Some(first)) => html! { ol start=(first) { (inner) } },
        Kind::Item => html! { li { (inner) } },
        Kind::Table => table(nodes),
        Kind::TableHead | Kind::TableRow => html! { tr { (inner) } },
        Kind::TableCell if in_head => html! { th scope="col" { (inner) } },
        Kind::TableCell => html! { td { (inner) } },
        Kind::Emphasis => html! { em { (inner) } },
        Kind::Strong => html! { strong { (inner) } },
        Kind::Link(address) => link(address, &text_of(nodes), &inner),
        Kind::Image(address) => image(address, &text_of(nodes)),
        Kind::Nothing => inner,
    }
}

fn code_block(name: &str, code: &str) -> Markup {
    let name = name.split([' ', ',']).next().unwrap_or_default();
    html! { pre class="fence" tabindex="0" { code { (paint(name, code)) } } }
}

fn table(nodes: &[Node<'_>]) -> Markup {
    let is_head = |node: &&Node<'_>| matches!(node, Node::Element(Kind::TableHead, _));
    html! {
        div class="wide" tabindex="0" role="region" aria-label="Table" {
            table {
                thead { @for node in nodes.iter().filter(is_head) { (write(node, true)) } }
                tbody { @for node in nodes.iter().filter(|node| !is_head(node)) { (write(node, false)) } }
            }
        }
    }
}

/// Returns a link that says where it leads. An address of another scheme is not followed.
fn link(address: &str, text: &str, inner: &Markup) -> Markup {
    let Some((url, host)) = link_target(address) else {
        return html! { (inner) " " span class="where" { (visible_text(address)) } };
    };
    let misleads = reads_like_address(text) && !names_host(text, &host);
    html! {
        a href=(url) rel="noopener noreferrer nofollow" referrerpolicy="no-referrer" {
            @if misleads || text.trim().is_empty() { (visible_text(&url)) } @else { (inner) }
        }
        " " span class="where" { (visible_text(&host)) }
    }
}

/// Returns an image as its words and its host. It is never loaded.
fn image(address: &str, words: &str) -> Markup {
    let host = link_target(address).map(|(_, host)| host);
    html! {
        span class="chip" {
            "image" @if !words.trim().is_empty() { ": " (prose(words)) }
            " " span class="where" { (visible_text(host.as_deref().unwrap_or(address))) }
        }
    }
}

/// Returns the address and the host of a link that may be followed. The parser of addresses is the one that browsers
/// share, so a scheme that is hidden by spaces or line breaks is seen as what it is.
fn link_target(address: &str) -> Option<(String, String)> {
    let url = Url::parse(address).ok()?;
    let host = match url.scheme() {
        "http" | "https" => url.host_str()?.to_owned(),
        "mailto" => url.path().to_owned(),
        _ => return None,
    };
    Some((url.to_string(), host))
}

/// Returns true if a reader would take the text for an address.
fn reads_like_address(text: &str) -> bool {
    let text = text.trim();
    let has_domain = || {
        text.split(['/', '?', '#', ':']).next().is_some_and(|host| {
            host.rsplit_once('.').is_some_and(|(_, end)| end.len() > 1 && end.chars().all(char::is_alphabetic))
        })
    };
    text.contains("://") || text.contains("www.") || text.contains('@') || (!text.contains(' ') && has_domain())
}

/// Returns true if the address that a text reads like has this host.
fn names_host(text: &str, host: &str) -> bool {
    let text = text.trim();
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    text == host
        || text == format!("mailto:{host}")
        || link_target(&with_scheme).is_some_and(|(_, named)| named == host)
}

/// Returns the text of nodes without their elements.
fn text_of(nodes: &[Node<'_>]) -> String {
    nodes.iter().fold(String::new(), |mut text, node| {
        match node {
            Node::Text(piece) | Node::Code(piece) => text.push_str(piece),
            Node::Space | Node::Break => text.push('\n'),
            Node::Rule => {}
            Node::Element(_, inner) => text.push_str(&text_of(inner)),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        markdown(text).into_string()
    }

    #[test]
    fn the_known_elements_are_written_and_html_is_the_text_that_it_is() {
        assert_eq!(written("a *b* **c** `d`"), "<p>a <em>b</em> <strong>c</strong> <code>d</code></p>");
        assert_eq!(written("<script>x</script>\n"), "<p>&lt;script&gt;x&lt;/script&gt;\n</p>");
        assert_eq!(written("a <img src=x onerror=y>"), "<p>a &lt;img src=x onerror=y&gt;</p>");
        assert_eq!(written("3. a\n4. b"), "<ol start=\"3\"><li>a</li><li>b</li></ol>");
    }

    #[test]
    fn headings_stand_below_the_page_and_leave_no_level_out() {
        assert_eq!(written("### a\n# b\n### c"), "<h3>a</h3><h3>b</h3><h4>c</h4>");
    }

    #[test]
    fn a_link_shows_its_host_and_only_known_schemes_are_followed() {
        let markup = written("[docs](https://example.org/x)");
        assert!(markup.contains(r#"<a href="https://example.org/x" rel="noopener noreferrer nofollow" referrerpolicy="no-referrer">docs</a> <span class="where">example.org</span>"#), "{markup}");
        for address in
            ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "//evil.example", "vbscript:x"]
        {
            let markup = written(&format!("[x](<{address}>)"));
            assert!(!markup.contains("<a "), "{markup}");
        }
    }

    #[test]
    fn a_link_whose_text_reads_like_another_address_shows_its_target() {
        let markup = written("[https://bank.example](https://evil.example/a)");
        assert!(markup.contains(">https://evil.example/a</a>"), "{markup}");
        assert!(written("[bank.example/login](https://bank.example/login)").contains(">bank.example/login</a>"));
    }

    #[test]
    fn an_image_is_a_chip_with_its_host() {
        let markup = written("![secret](https://evil.example/?q=1)");
        assert_eq!(markup, r#"<p><span class="chip">image: secret <span class="where">evil.example</span></span></p>"#);
    }

    #[test]
    fn text_beyond_the_bounds_is_plain() {
        assert!(written(&"> ".repeat(40)).starts_with("<p class=\"plain\">"));
        assert!(written(&format!("{}x", "a".repeat(MARKDOWN_BYTES_MAX))).starts_with("<p class=\"plain\">"));
        let wide = format!("|{}\n|{}\n{}", "a|".repeat(400), "-|".repeat(400), "|a|\n".repeat(400));
        assert!(written(&wide).starts_with("<p class=\"plain\">"), "rows are filled up to the width of their table");
    }
}
