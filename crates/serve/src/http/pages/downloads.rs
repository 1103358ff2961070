//! Downloads: the export of a run, a whole output, an image.

use std::io;

use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response};
use cantrip_pages::{export_page, output_part};
use cantrip_service::cantrip::canon::{Hash, RunId, TurnId};
use cantrip_service::cantrip::loom::WindowPlace;
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_view::ExportFormat;
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use super::named::Named;
use super::visitor::Visitor;
use super::{part, wanted_part};
use crate::http::extractors::QueryParams;
use crate::limits::{EXPORT_LINES_AHEAD, PAGE_EXPORT_TURNS_MAX, PAGE_IMAGE_BYTES_MAX};

#[derive(Debug, Default, Deserialize)]
pub(super) struct ExportQuery {
    /// `turns`, `journal`, `chat`, `markdown` or `page`.
    #[serde(rename = "as")]
    format: Option<String>,
}

/// Exports a run, redacted.
pub(super) async fn export(
    visitor: Visitor,
    Named(run): Named<RunId>,
    QueryParams(ExportQuery { format }): QueryParams<ExportQuery>,
) -> Response<Body> {
    let format = format.as_deref().unwrap_or("page");
    let exported = match ExportFormat::parse(format) {
        Some(format) => export_lines(&visitor, run, format).await,
        None if format == "page" => export_whole_page(&visitor, run).await,
        None => Err(codes::schema("the query", "/as", "it is turns, journal, chat, markdown or page").into()),
    };
    match exported {
        Ok(response) => response,
        Err(refusal) => visitor.refuse(refusal).await,
    }
}

/// Streams the lines of an export. A task reads them, a few ahead of the client.
async fn export_lines(visitor: &Visitor, run: RunId, format: ExportFormat) -> Result<Response<Body>, Refusal> {
    let (sender, mut lines) = mpsc::channel::<Result<String, Refusal>>(EXPORT_LINES_AHEAD);
    let reading = visitor.clone();
    tokio::spawn(async move {
        let views = reading.views();
        let mut exported = match views.export(run, format).await {
            Ok(exported) => exported,
            // The receiver answers the refusal.
            Err(refusal) => return drop(sender.send(Err(refusal)).await),
        };
        while let Some(line) = exported.next().await {
            let is_last = line.is_err();
            if sender.send(line).await.is_err() || is_last {
                return;
            }
        }
    });
    // Until the first line is there, a fault can still be told with a status.
    let first = lines.recv().await.transpose()?;
    let rest = stream::unfold(lines, |mut lines| async move { Some((lines.recv().await?, lines)) });
    let failed = |refusal: Refusal| io::Error::other(refusal.code().as_str());
    let body = stream::iter(first.map(Ok)).chain(rest.map(move |line| line.map_err(failed)));
    let name = format!("{run}.{}", format.file_ending());
    Ok(download(Body::from_stream(body), format.media_type(), &name))
}

/// Exports the thread of a run as one file that can be opened from disk.
async fn export_whole_page(visitor: &Visitor, run: RunId) -> Result<Response<Body>, Refusal> {
    let views = visitor.views();
    let head = views.head(run, None).await?;
    let (mut windows, mut after) = (Vec::new(), 0);
    loop {
        let window = views.window(run, None, WindowPlace::After(after)).await?;
        if window.window.last > PAGE_EXPORT_TURNS_MAX {
            let hint = format!("export it as text: /runs/{run}/export?as=markdown");
            let refusal = codes::limit("the turns of a page", window.window.last, PAGE_EXPORT_TURNS_MAX);
            return Err(refusal.data(json!({ "hint": hint })).into());
        }
        let turns = window.window.turns.iter().map(|turn| turn.sequence);
        let newest = turns.chain(window.window.damaged.iter().map(|damaged| damaged.sequence)).max();
        let is_end = window.at_end;
        windows.push(window);
        match newest.filter(|newest| *newest > after && !is_end) {
            Some(newest) => after = newest,
            None => break,
        }
    }
    let page = export_page(visitor.http.now(), &head, &windows);
    Ok(download(Body::from(page), "text/html; charset=utf-8", &format!("{run}.html")))
}

/// Returns a response that the browser saves and does not show.
fn download(body: Body, kind: &'static str, name: &str) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // Names are made of ids, so they need no quoting.
    if let Ok(named) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
        headers.insert(CONTENT_DISPOSITION, named);
    }
    response
}

/// Returns a whole output: as a part of the page, or as a file.
pub(super) async fn output(
    visitor: Visitor,
    Named(run): Named<RunId>,
    Named(turn): Named<TurnId>,
    Path(path): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Response<Body> {
    let read = async {
        let (.., number) = path;
        let n: usize = number.parse().map_err(|_| codes::not_found("item", format!("{turn}.{number}")))?;
        let bytes = visitor.views().output(turn, n).await?;
        Ok::<_, Refusal>((n, bytes))
    };
    match read.await {
        Ok((n, bytes)) if wanted_part(&headers) == Some("output") => {
            part(&headers, output_part(run, turn, n, &String::from_utf8_lossy(&bytes)).into_string())
        }
        Ok((n, bytes)) => download(Body::from(bytes), "text/plain; charset=utf-8", &format!("{turn}.{n}.txt")),
        Err(refusal) => visitor.refuse(refusal).await,
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct BodyQuery {
    run: Option<String>,
}

/// Returns a body of a run: an image as such, anything else as a file without its secrets.
pub(super) async fn body(
    visitor: Visitor,
    Path(named): Path<String>,
    QueryParams(BodyQuery { run }): QueryParams<BodyQuery>,
) -> Response<Body> {
    let read = async {
        let run = run.unwrap_or_default();
        let run: RunId = run.parse().map_err(|_| codes::not_found("run", run))?;
        let hash: Hash = named.parse().map_err(|_| codes::not_found("body", named.as_str()))?;
        Ok::<_, Refusal>((hash, visitor.views().body(run, hash).await?))
    };
    let (hash, body) = match read.await {
        Ok(read) => read,
        Err(refusal) => return visitor.refuse(refusal).await,
    };
    let bytes = body.bytes().to_vec();
    let mut response = match image_kind(&bytes).filter(|_| bytes.len() <= PAGE_IMAGE_BYTES_MAX) {
        Some(kind) => {
            let mut response = Response::new(Body::from(bytes));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            response
        }
        None => {
            let bytes = match String::from_utf8(bytes) {
                Ok(text) => visitor.views().redact_text(&text).into_bytes(),
                Err(binary) => binary.into_bytes(),
            };
            download(Body::from(bytes), "application/octet-stream", &format!("{}.bin", hash.hex(16)))
        }
    };
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    response
}

/// Returns the kind of an image by its first bytes, whatever a record says that it is. SVG is not among them: it can
/// hold a script.
fn image_kind(bytes: &[u8]) -> Option<&'static str> {
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if bytes.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        Some("image/gif")
    } else if is_webp {
        Some("image/webp")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_first_bytes() {
        assert_eq!(image_kind(b"\x89PNG\r\n\x1a\n...."), Some("image/png"));
        assert_eq!(image_kind(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(image_kind(b"GIF89a"), Some("image/gif"));
        assert_eq!(image_kind(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        for other in [b"<svg xmlns='http://www.w3.org/2000/svg'/>".as_slice(), b"%PDF-1.7", b"<html>", b"", b"RIFF"] {
            assert_eq!(image_kind(other), None);
        }
    }
}
