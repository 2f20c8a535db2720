//! What is counted as stuck.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use idem_core::{Counts, Inspect as _, KeyStore as _, ManualClock, Span, Timestamp};
use idem_sqlite::SqliteOptions;
use support::claim;

#[tokio::test]
async fn nothing_is_the_oldest_while_nothing_is_stuck() {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let options = SqliteOptions::new().clock(clock.clone());
    let store = options.open_in_memory().await.unwrap();
    store.claim(&claim("k", 1)).await.unwrap();
    let running = Counts {
        in_progress: 1,
        ..Counts::default()
    };
    assert_eq!(store.count().await.unwrap(), running);
    clock.advance(Span::from_secs(90));
    let stuck = store.count().await.unwrap();
    assert_eq!(stuck.stuck, 1);
    assert!(stuck.oldest_stuck.is_some());
}
