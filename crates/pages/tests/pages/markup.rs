//! Markup as tokens, and an independent sanitiser that must find nothing to take out of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The elements of our templates. A page has no other.
const ELEMENTS: &[&str] = &[
    "a",
    "article",
    "aside",
    "b",
    "blockquote",
    "br",
    "button",
    "caption",
    "circle",
    "code",
    "data",
    "dd",
    "del",
    "details",
    "div",
    "dl",
    "dt",
    "em",
    "fieldset",
    "form",
    "g",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "i",
    "img",
    "input",
    "ins",
    "kbd",
    "label",
    "legend",
    "li",
    "main",
    "nav",
    "ol",
    "option",
    "p",
    "path",
    "pre",
    "rect",
    "section",
    "select",
    "small",
    "span",
    "strong",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "textarea",
    "th",
    "thead",
    "time",
    "title",
    "tr",
    "ul",
];

/// The attributes of our templates, beside those that begin with `data-` or `aria-`. There is no handler, no style.
const ATTRIBUTES: &[&str] = &[
    "accept",
    "action",
    "alt",
    "autocomplete",
    "autofocus",
    "checked",
    "class",
    "cx",
    "cy",
    "d",
    "datetime",
    "disabled",
    "download",
    "enctype",
    "fill",
    "font-family",
    "font-size",
    "for",
    "height",
    "hidden",
    "href",
    "id",
    "inputmode",
    "loading",
    "maxlength",
    "method",
    "name",
    "opacity",
    "open",
    "placeholder",
    "preserveAspectRatio",
    "r",
    "referrerpolicy",
    "rel",
    "required",
    "role",
    "rows",
    "rx",
    "scope",
    "selected",
    "src",
    "start",
    "stroke",
    "stroke-dasharray",
    "stroke-linecap",
    "stroke-width",
    "tabindex",
    "text-anchor",
    "title",
    "type",
    "value",
    "vector-effect",
    "viewBox",
    "width",
    "x",
    "y",
];

/// The elements without an end.
const VOID: &[&str] = &["br", "hr", "img", "input", "link", "meta"];

/// A piece of markup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    Start(String, BTreeMap<String, String>),
    End(String),
    Text(String),
}

/// The link that stands for the script where there is none. A parser with scripts reads it as text.
const AGAIN: &str = "<noscript><a id=\"again\" class=\"follow\" href=\"\">Look again</a></noscript>";

/// Returns the content of the body of a page, without the link for readers without script.
pub(crate) fn body(page: &str) -> String {
    let (_, rest) = page.split_once("<body>").unwrap();
    rest.split_once("</body>").unwrap().0.replace(AGAIN, "")
}

/// Returns the tokens of markup as a parser reads it. Every element is closed where it was opened.
pub(crate) fn tokens(markup: &str) -> Vec<Token> {
    let mut tokens = tokens_as_written(markup);
    // A parser leaves out the first line break of these elements.
    let mut before: Option<String> = None;
    for token in &mut tokens {
        match token {
            Token::Text(text) if matches!(before.as_deref(), Some("pre" | "textarea")) && text.starts_with('\n') => {
                text.remove(0);
            }
            Token::Text(_) | Token::Start(..) | Token::End(_) => {}
        }
        before = if let Token::Start(name, _) = token { Some(name.clone()) } else { None };
    }
    tokens.retain(|token| *token != Token::Text(String::new()));
    tokens
}

/// Returns the tokens of markup with every line break that it has.
fn tokens_as_written(markup: &str) -> Vec<Token> {
    let (mut tokens, mut open, mut rest) = (Vec::new(), Vec::new(), markup);
    while let Some(at) = rest.find('<') {
        push_text(&mut tokens, &rest[..at]);
        let end = tag_end(&rest[at..]);
        let tag = &rest[at + 1..at + end];
        rest = &rest[at + end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "an element is closed that was not opened last");
            tokens.push(Token::End(name.to_owned()));
        } else {
            let (name, attributes) = start(tag);
            if !VOID.contains(&name.as_str()) {
                open.push(name.clone());
            }
            tokens.push(Token::Start(name, attributes));
        }
    }
    push_text(&mut tokens, rest);
    assert!(open.is_empty(), "{open:?} stay open");
    tokens
}

/// Returns the place of the end of the tag with which the text begins. Values may hold any character but their quote.
fn tag_end(text: &str) -> usize {
    let mut is_quoted = false;
    for (at, char) in text.char_indices() {
        match char {
            '"' => is_quoted = !is_quoted,
            '>' if !is_quoted => return at,
            _ => {}
        }
    }
    panic!("a tag does not end: {}", &text[..text.len().min(200)]);
}

fn start(tag: &str) -> (String, BTreeMap<String, String>) {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let mut attributes = BTreeMap::new();
    while !rest.trim_start().is_empty() {
        rest = rest.trim_start();
        let end = rest.find(['=', ' ']).unwrap_or(rest.len());
        let key = rest[..end].to_owned();
        rest = &rest[end..];
        let mut value = String::new();
        if let Some(quoted) = rest.strip_prefix("=\"") {
            let (inner, after) = quoted.split_once('"').unwrap();
            (value, rest) = (decoded(inner), after);
        }
        assert_eq!(attributes.insert(key.clone(), value), None, "{key} is there twice in <{tag}>");
    }
    (name.to_owned(), attributes)
}

fn push_text(tokens: &mut Vec<Token>, text: &str) {
    if !text.is_empty() {
        tokens.push(Token::Text(decoded(text)));
    }
}

fn decoded(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&nbsp;", "\u{a0}");
    text.replace("&amp;", "&")
}

/// Returns all text of a page as a reader sees it.
pub(crate) fn text(tokens: &[Token]) -> String {
    let texts = tokens.iter().filter_map(|token| match token {
        Token::Text(text) => Some(text.as_str()),
        Token::Start(..) | Token::End(_) => None,
    });
    texts.collect()
}

/// Returns the elements of a page with the names of their attributes, in order.
pub(crate) fn shape(tokens: &[Token]) -> Vec<String> {
    let shapes = tokens.iter().filter_map(|token| match token {
        Token::Start(name, attributes) => {
            let names: Vec<&str> = attributes.keys().map(String::as_str).collect();
            Some(format!("{name} {}", names.join(" ")))
        }
        Token::End(name) => Some(format!("/{name}")),
        Token::Text(_) => None,
    });
    shapes.collect()
}

/// Checks that markup has only elements, attributes and addresses of our templates.
pub(crate) fn check_known(name: &str, tokens: &[Token]) {
    for token in tokens {
        let Token::Start(element, attributes) = token else { continue };
        assert!(ELEMENTS.contains(&element.as_str()), "{name} has <{element}>");
        for (key, value) in attributes {
            let is_known = ATTRIBUTES.contains(&key.as_str()) || key.starts_with("data-") || key.starts_with("aria-");
            assert!(is_known, "{name} has {key} in <{element}>");
            if matches!(key.as_str(), "href" | "src" | "action") {
                check_address(name, element, attributes, value);
            }
        }
    }
}

/// An address is on this server. A link that a text gave may lead elsewhere, but tells that place nothing.
fn check_address(name: &str, element: &str, attributes: &BTreeMap<String, String>, value: &str) {
    let is_own = value.starts_with('#')
        || value.starts_with('?')
        || value.is_empty()
        || value.starts_with('/') && !value.starts_with("//") && !value.starts_with("/\\");
    if is_own {
        return;
    }
    let is_outside = ["http://", "https://", "mailto:"].iter().any(|scheme| value.starts_with(scheme));
    assert!(element == "a" && is_outside, "{name} leads to {value:?} by <{element}>");
    let of = |key: &str| attributes.get(key).map(String::as_str);
    assert_eq!(of("rel"), Some("noopener noreferrer nofollow"), "{name}: {value}");
    assert_eq!(of("referrerpolicy"), Some("no-referrer"), "{name}: {value}");
}

/// Checks that a sanitiser that others wrote parses the markup to the same elements, and takes nothing out.
pub(crate) fn check_sanitised(name: &str, markup: &str, tokens: &[Token]) {
    // The sanitiser writes what it parsed, and does not repeat the line break that it left out.
    let cleaned = tokens_as_written(&sanitiser().clean(markup).to_string());
    let first = tokens.iter().zip(&cleaned).find(|(ours, theirs)| ours != theirs);
    assert_eq!(first, None, "{name} is changed by the sanitiser");
    assert_eq!(tokens.len(), cleaned.len(), "{name} is cut by the sanitiser");
}

fn sanitiser() -> ammonia::Builder<'static> {
    let elements: HashSet<&str> = ELEMENTS.iter().copied().collect();
    let attributes: HashSet<&str> = ATTRIBUTES.iter().copied().collect();
    let schemes: HashSet<&str> = ["http", "https", "mailto"].into();
    let prefixes: HashSet<&str> = ["data-", "aria-"].into();
    let mut sanitiser = ammonia::Builder::new();
    sanitiser
        .tags(elements)
        .clean_content_tags(HashSet::from(["script", "style"]))
        .tag_attributes(std::collections::HashMap::new())
        .generic_attributes(attributes)
        .generic_attribute_prefixes(prefixes)
        .url_schemes(schemes)
        .url_relative(ammonia::UrlRelative::PassThrough)
        .link_rel(None);
    sanitiser
}

/// Checks that no id is given twice, and that labels and descriptions name an id of the page.
pub(crate) fn check_ids(name: &str, tokens: &[Token]) {
    let mut ids = BTreeSet::new();
    let attributes = || {
        tokens.iter().filter_map(|token| match token {
            Token::Start(_, attributes) => Some(attributes),
            Token::End(_) | Token::Text(_) => None,
        })
    };
    for id in attributes().filter_map(|attributes| attributes.get("id")) {
        assert!(ids.insert(id.as_str()), "{name} has the id {id} twice");
    }
    for attributes in attributes() {
        for key in ["for", "aria-labelledby", "aria-describedby"] {
            let named = attributes.get(key).into_iter().flat_map(|ids| ids.split(' '));
            named.for_each(|id| assert!(ids.contains(id), "{name}: {key} names {id}, which is not there"));
        }
    }
}
