//! Text of an entity, a gate, a file or a caller stays text on every page.

use proptest::prelude::*;

use crate::markup::{self, Token};
use crate::{Amount, empty_pages, pages};

/// Texts that became more than text in some program, each without a character that is shown by another one.
const HOSTILE: &[&str] = &[
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "</textarea></pre></details><h1>",
    "</title></style><svg onload=alert(1)>",
    "<math><mtext><style><img src=x>",
    "<meta http-equiv=refresh content=0>",
    "<iframe srcdoc='<b>'></iframe>",
    "<base href=//evil.example><form>",
    "javascript:alert(1)",
    "//evil.example/x?y=1&z=2",
    "data:text/html,<script>1</script>",
    "&lt;b&gt; &amp;amp; &#60;i&#62; ]]>",
    "<!-- <svg><title> -->",
    "{{constructor}} ${7*7} `x`",
    "\\\" \\' \\u003cb\\u003e",
];

/// Markdown that tries to be more than the list allows.
const HOSTILE_MARKDOWN: &[&str] = &[
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](//evil.example) [d](vbscript:x)",
    "![x](https://evil.example/?leak=1) <img src=//evil.example>",
    "[https://bank.example](https://evil.example) <https://ok.example> [x]: https://y",
    "<div onclick=x>block</div>\n\n<script>\nalert(1)\n</script>\n\n# head {#id .class}",
    "| a | b |\n|---|---|\n| <b>x</b> | `</td><script>` |\n\n> > > quote\n\n1. a\n   - b\n     * c",
    "```html\"><script>\n</code></pre><script>alert(1)</script>\n```\n~~~\n</pre>\n~~~",
];

/// Pages on which programs are coloured and Markdown is read: their elements depend on the text.
const READ_AS_MORE: &[&str] = &["run-waiting", "run-live", "run-terminated", "export"];
/// Pages without a text of others.
const OWN_WORDS: &[&str] = &["keys", "settings", "code", "sign-in"];

fn check(name: &str, page: &str) -> Vec<Token> {
    let body = markup::body(page);
    let tokens = markup::tokens(&body);
    markup::check_known(name, &tokens);
    markup::check_sanitised(name, &body, &tokens);
    tokens
}

#[test]
fn hostile_text_is_text_and_changes_no_element() {
    let harmless: Vec<(&str, Vec<String>)> = pages("text", "text", Amount::FEW)
        .into_iter()
        .map(|(name, page)| (name, markup::shape(&markup::tokens(&markup::body(&page)))))
        .collect();
    for hostile in HOSTILE {
        let all = pages(hostile, hostile, Amount::FEW);
        for ((name, page), (_, shape)) in all.into_iter().zip(&harmless) {
            let tokens = check(name, &page);
            if !READ_AS_MORE.contains(&name) {
                assert_eq!(markup::shape(&tokens), *shape, "{name} with {hostile:?}");
            }
            let is_shown = OWN_WORDS.contains(&name) || markup::text(&tokens).contains(hostile);
            assert!(is_shown, "{name} does not show {hostile:?} as it is");
        }
    }
}

#[test]
fn hostile_markdown_yields_no_element_attribute_or_address_outside_of_the_list() {
    for hostile in HOSTILE_MARKDOWN {
        for (name, page) in pages(hostile, "other", Amount::FEW) {
            for token in check(name, &page) {
                let Token::Start(element, attributes) = token else { continue };
                assert_ne!(element, "img", "{name} loads an image with {hostile:?}");
                for value in ["href", "src", "action"].iter().filter_map(|key| attributes.get(*key)) {
                    assert!(!value.contains("javascript:") && !value.starts_with("data:"), "{name}: {value}");
                }
            }
        }
    }
}

#[test]
fn characters_that_nobody_sees_are_made_visible() {
    let hostile = "pay\u{202e}lap\u{2066}x\u{200b}y\u{feff}\u{1b}[31mred\u{0}\u{7}";
    for (name, page) in pages(hostile, hostile, Amount::FEW) {
        let mut is_field = false;
        let tokens = check(name, &page);
        for token in &tokens {
            match token {
                Token::Start(element, _) => is_field = element == "textarea",
                Token::End(_) => is_field = false,
                // A field holds what was typed, so that sending it again does not change it.
                Token::Text(_) if is_field => {}
                Token::Text(text) => {
                    let unseen = text.chars().find(|char| {
                        let is_break = matches!(char, '\n' | '\t');
                        let is_unseen = matches!(
                            char,
                            '\u{200b}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
                        );
                        is_unseen || char.is_control() && !is_break
                    });
                    assert_eq!(unseen, None, "{name}: {text:?}");
                }
            }
        }
        let shown = markup::text(&tokens);
        assert!(
            OWN_WORDS.contains(&name) || shown.contains("⟨U+202E⟩"),
            "{name} does not show the change of direction"
        );
    }
}

#[test]
fn ids_are_unique_and_labels_lead_to_their_fields() {
    for (name, page) in pages("text", "other", Amount::FEW).into_iter().chain(empty_pages()) {
        let tokens = markup::tokens(&markup::body(&page));
        markup::check_ids(name, &tokens);
        let headings = tokens.iter().filter(|token| matches!(token, Token::Start(element, _) if element == "h1"));
        assert_eq!(headings.count(), 1, "{name} has one heading of the first level");
    }
}

/// Pieces of markup, Markdown and addresses, and any characters between them.
fn hostile_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => proptest::sample::select(HOSTILE).prop_map(str::to_owned),
        3 => proptest::sample::select(HOSTILE_MARKDOWN).prop_map(str::to_owned),
        2 => "[<>&\"'`=/!\\-\\[\\]()*_#|~ \n]{0,24}",
        2 => any::<String>(),
        1 => Just("\r\n\0\u{202e}\u{2028}".to_owned()),
    ];
    proptest::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_parses_to_elements_of_our_templates_and_a_sanitiser_takes_nothing_out(
        text in hostile_text(),
        other in hostile_text(),
    ) {
        for (name, page) in pages(&text, &other, Amount::FEW) {
            check(name, &page);
        }
    }
}
