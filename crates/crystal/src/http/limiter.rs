//! Which request may be sent to a provider now?
//!
//! A provider counts the requests of a key, not those of an entity. So all requests of this process with the same key
//! to the same address pass through one limiter: at most [`REQUESTS_AT_ONCE_MAX`] at once, in the order in which they
//! asked, and none while the provider asks to wait. A separate back-off for each entity was turned down: the other
//! entities would continue, and a provider that reports too many requests would get even more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cantrip_canon::{Hash, bytes_hash};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::limits::{REQUESTS_AT_ONCE_MAX, RETRY_AFTER_MS_MAX};

/// The limiter of one key at one address.
#[derive(Debug)]
pub(crate) struct Limiter {
    places: Arc<Semaphore>,
    /// The time until which the provider asked to wait.
    held_until: Mutex<Option<Instant>>,
}

/// A slot among the requests in flight. It is released when dropped.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Limiter {
    fn new(places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), held_until: Mutex::new(None) }
    }

    /// Returns the limiter of this key at this address, shared by the whole process. Only a hash of the key is kept.
    pub(crate) fn of(authority: &str, key: Option<&str>) -> Arc<Self> {
        static ALL: Mutex<Option<HashMap<Hash, Weak<Limiter>>>> = Mutex::new(None);
        let name = bytes_hash(format!("{authority}\n{}", key.unwrap_or_default()).as_bytes());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(known) = all.get(&name).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, limiter| limiter.strong_count() > 0);
        let limiter = Arc::new(Self::new(REQUESTS_AT_ONCE_MAX));
        all.insert(name, Arc::downgrade(&limiter));
        limiter
    }

    /// Waits until a request may be sent. Dropping the future gives up the place in the queue.
    pub(crate) async fn enter(&self) -> RequestSlot {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.places).acquire_owned().await.ok();
        while let Some(until) = self.blocked_until().filter(|until| *until > Instant::now()) {
            tokio::time::sleep_until(until).await;
        }
        RequestSlot { _permit: permit }
    }

    fn blocked_until(&self) -> Option<Instant> {
        *self.held_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks requests for as long as the provider asked to wait. A provider that asks for more than
    /// [`RETRY_AFTER_MS_MAX`] is down; the next request finds that out by itself.
    pub(crate) fn back_off(&self, wait: Duration) {
        if wait > Duration::from_millis(RETRY_AFTER_MS_MAX) {
            return;
        }
        let until = Instant::now() + wait;
        let mut held = self.held_until.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(held.map_or(until, |before| before.max(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn one_key_at_one_address_is_one_limiter_for_as_long_as_someone_has_it() {
        let one = Limiter::of("https://a", Some("k"));
        assert!(Arc::ptr_eq(&one, &Limiter::of("https://a", Some("k"))));
        assert!(!Arc::ptr_eq(&one, &Limiter::of("https://a", Some("other"))));
        assert!(!Arc::ptr_eq(&one, &Limiter::of("https://b", Some("k"))));
        assert!(!Arc::ptr_eq(&one, &Limiter::of("https://a", None)));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_its_places_are_on_their_way_and_the_next_waits_its_turn() {
        let limiter = Limiter::new(2);
        let first = limiter.enter().await;
        let _second = limiter.enter().await;
        let mut third = Box::pin(limiter.enter());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_enters_while_the_provider_wants_to_be_left_alone() {
        let limiter = Limiter::new(8);
        let began = Instant::now();
        limiter.back_off(Duration::from_secs(5));
        limiter.back_off(Duration::from_secs(2));
        let _place = limiter.enter().await;
        assert_eq!(began.elapsed(), Duration::from_secs(5), "the longest wish counts");
        limiter.back_off(Duration::from_millis(RETRY_AFTER_MS_MAX + 1));
        assert!(limiter.enter().now_or_never().is_some(), "nobody waits for ever");
    }
}
