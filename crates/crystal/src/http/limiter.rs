//! Who may send to a provider now?
//!
//! A provider counts the requests of a key, not those of an entity. So everything in this process that uses the same key
//! at the same address goes through one limiter: at most [`REQUESTS_AT_ONCE_MAX`] at once, in the order of asking, and
//! nobody while the provider wants to be left alone. Each entity backing off by itself was the alternative; then the
//! others go on asking, and a provider that was told it is asked too often is asked more often.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cantrip_canon::{Hash, bytes_hash};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::limits::{REQUESTS_AT_ONCE_MAX, RETRY_AFTER_MS_MAX};

/// One key at one address.
#[derive(Debug)]
pub(crate) struct Limiter {
    places: Arc<Semaphore>,
    /// Until when the provider wants to be left alone.
    held_until: Mutex<Option<Instant>>,
}

/// A place among the requests on their way. Dropped, it is free.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Limiter {
    fn new(places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), held_until: Mutex::new(None) }
    }

    /// The limiter of this key at this address, the same for everyone in this process. Of the key only a hash is kept.
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

    /// Waits until a request may be sent. Dropping the future gives the place in the queue up.
    pub(crate) async fn enter(&self) -> RequestSlot {
        // It is never closed.
        let permit = Arc::clone(&self.places).acquire_owned().await.ok();
        while let Some(until) = self.blocked_until().filter(|until| *until > Instant::now()) {
            tokio::time::sleep_until(until).await;
        }
        RequestSlot { _permit: permit }
    }

    fn blocked_until(&self) -> Option<Instant> {
        *self.held_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The provider wants to be left alone for so long. One that wants more than anybody would wait for is down, which
    /// whoever asks it next finds out for themselves.
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
