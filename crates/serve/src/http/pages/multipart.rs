//! Forms with a file: `multipart/form-data`, as browsers write it, from a body that was read whole.

use super::forms::Field;

/// Returns the boundary that a content type names.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let parameters = content_type.split(';').skip(1);
    let named = parameters.filter_map(|parameter| parameter.trim().split_once('='));
    let (_, boundary) = named.into_iter().find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"))?;
    let boundary = boundary.trim().trim_matches('"');
    let fits = (1..=70).contains(&boundary.len()) && boundary.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| boundary.to_owned())
}

/// Returns the fields of a body; none if it does not have this form or ends too early.
pub(super) fn fields(body: &[u8], boundary: &str) -> Option<Vec<Field>> {
    let opening = format!("--{boundary}");
    let separator = format!("\r\n--{boundary}");
    let mut rest = body.strip_prefix(opening.as_bytes())?;
    let mut fields = Vec::new();
    loop {
        if rest.starts_with(b"--") {
            return Some(fields);
        }
        rest = rest.strip_prefix(b"\r\n")?;
        let (head, behind) = split_at(rest, b"\r\n\r\n")?;
        let (value, next) = split_at(behind, separator.as_bytes())?;
        fields.push(Field { name: field_name(std::str::from_utf8(head).ok()?)?, value: value.to_vec() });
        rest = next;
    }
}

/// Splits at the first place where `mark` stands.
fn split_at<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let first = *mark.first()?;
    let mut from = 0;
    while let Some(place) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        let at = from + place;
        let behind = bytes.get(at..)?;
        if let Some(behind) = behind.strip_prefix(mark) {
            return Some((bytes.get(..at)?, behind));
        }
        from = at + 1;
    }
    None
}

/// Returns the name that the head of a field gives. Browsers write a quotation mark in it as `%22`.
fn field_name(head: &str) -> Option<String> {
    let line = head.split("\r\n").find(|line| {
        line.split_once(':').is_some_and(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"))
    })?;
    let (_, parameters) = line.split_once(':')?;
    let mut parameters = parameters.split(';').map(str::trim);
    if !parameters.next()?.eq_ignore_ascii_case("form-data") {
        return None;
    }
    let name = parameters.find_map(|parameter| parameter.strip_prefix("name="))?;
    Some(name.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"--x\r\nContent-Disposition: form-data; name=\"intent\"\r\n\r\ngo\r\n--y\r\n--x\r\n\
        content-disposition: form-data; name=\"context\"; filename=\"a;b.bin\"\r\nContent-Type: text/plain\r\n\r\n\
        \x00\r\r\n-\r\n--x--\r\n";

    #[test]
    fn fields_are_read_byte_for_byte() {
        let read = fields(BODY, "x").expect("two fields");
        let named: Vec<(&str, &[u8])> = read.iter().map(|field| (field.name.as_str(), &*field.value)).collect();
        assert_eq!(named, [("intent", b"go\r\n--y".as_slice()), ("context", b"\0\r\r\n-".as_slice())]);
        assert_eq!(fields(b"--x--", "x").map(|fields| fields.len()), Some(0));
    }

    #[test]
    fn a_body_that_is_cut_anywhere_is_no_form() {
        for end in 0..BODY.len() - b"--\r\n".len() {
            assert_eq!(fields(&BODY[..end], "x"), None, "{end}");
        }
        assert_eq!(fields(BODY, "y"), None);
        assert_eq!(fields(b"--x\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n\r\n--x--", "x"), None);
    }

    #[test]
    fn a_boundary_is_short_and_visible() {
        let of = |boundary: &str| super::boundary(&format!("multipart/form-data; charset=utf-8; boundary={boundary}"));
        assert_eq!(of("\"a-b\"").as_deref(), Some("a-b"));
        assert_eq!(of(""), None);
        assert_eq!(of("a b"), None);
        assert_eq!(of(&"a".repeat(71)), None);
        assert_eq!(super::boundary("multipart/form-data"), None);
    }
}
