//! Intents with images: the crystal receives their bytes.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::{Arc, Mutex};

use cantrip::{Cantrip, CastOptions, ForkOptions};
use cantrip_crystal::Request;
use cantrip_loom::{AnyLoom, Body, Content, Loom, MemoryLoom, Message, Part};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;
use support::{Acting, Count, call, counting, done, house_of, memory, said_before, script, stores, talking};

fn picture(bytes: &[u8]) -> (Content, Body) {
    let body = Body::new(bytes.to_vec()).unwrap();
    let image = Part::Image { media_type: "image/png".to_owned(), image: body.reference() };
    (Content::Parts(vec![Part::Text { text: "what is this?".to_owned() }, image]), body)
}

type Seen = Arc<Mutex<Vec<Vec<Vec<u8>>>>>;

/// Records the bytes of every image of every request.
fn looking(seen: &Seen) -> Cantrip {
    let seen = Arc::clone(seen);
    let crystal = Acting(move |request: &Request| {
        let mut shown = Vec::new();
        for message in request.messages.iter() {
            let Message::User { content: Content::Parts(parts) } = message else { continue };
            for part in parts {
                if let Part::Image { image, .. } = part {
                    shown.push(request.bodies.body(&image.hash).unwrap().to_vec());
                }
            }
        }
        seen.lock().unwrap().push(shown);
        if said_before(request).is_multiple_of(2) { call("count", json!({"n": 1})) } else { done("seen") }
    });
    talking(&script([])).crystal(crystal).gate(counting("count", &Count::default())).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_request_carries_the_bytes_of_the_images_on_its_path() {
    for (store, _folder) in stores() {
        let (runtime, seen) = (house_of(store, 1), Seen::default());
        let cantrip = looking(&seen);
        let entity = runtime.summon(&cantrip, None).await.unwrap();
        let ((one, first), (two, second)) = (picture(b"one"), picture(b"two"));
        let cast = entity.send_casting(CastOptions::on(one).attach(first)).await;
        assert_eq!(cast.answer(), Some(&json!("seen")), "{:?}", cast.reply());
        let leaf = cast.outcome.unwrap().leaf.unwrap();
        assert_eq!(
            entity.send_casting(CastOptions::on(two.clone()).attach(second)).await.answer(),
            Some(&json!("seen"))
        );
        let only = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let wanted = [only(&["one"]), only(&["one"]), only(&["one", "two"]), only(&["one", "two"])];
        assert_eq!(*seen.lock().unwrap(), wanted);

        // Another process that loads the entity, and a fork, read the images from the store.
        let taken = runtime.entity(&cantrip, entity.id()).await.unwrap();
        assert_eq!(taken.send("and now?").await.answer(), Some(&json!("seen")));
        assert_eq!(seen.lock().unwrap().last(), Some(&only(&["one", "two"])));
        let fork = runtime.fork(&cantrip, leaf, ForkOptions::on("another way")).await;
        assert_eq!(fork.answer(), Some(&json!("seen")), "{:?}", fork.reply());
        assert_eq!(seen.lock().unwrap().last(), Some(&only(&["one"])));
        let leaf = fork.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_not_there_is_an_error_and_no_request_leaves() {
    let (runtime, seen) = (memory(), Seen::default());
    let cantrip = looking(&seen);
    let (content, body) = picture(b"gone");
    let cast = runtime.cast(&cantrip, CastOptions::on(content.clone())).await;
    assert_code(cast.reply(), codes::RECORD_ALTERED);
    assert!(seen.lock().unwrap().is_empty() && cast.outcome.is_none());
    // Nothing is lost: once the bytes are there, the run continues.
    let other = runtime.cast(&cantrip, CastOptions::on(content).attach(body)).await;
    assert_eq!(other.answer(), Some(&json!("seen")));
    let resumed = runtime.resume(&cantrip, cast.run.unwrap()).await;
    assert_eq!(resumed.answer(), Some(&json!("seen")), "{:?}", resumed.reply());
}

#[tokio::test(start_paused = true)]
async fn an_entity_is_given_no_second_context() {
    let runtime = house_of(AnyLoom::new(MemoryLoom::new()), 1);
    let cantrip = talking(&script([done(1)])).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    let refused = entity.send_casting(CastOptions::on("go").context(json!({"more": 1}))).await;
    assert_code(refused.reply(), codes::CONTRACT_INVALID);
    assert_eq!(entity.send("go").await.answer(), Some(&json!(1)));
    assert_eq!(runtime.loom().casts(entity.id()).await.unwrap().len(), 1);
}
