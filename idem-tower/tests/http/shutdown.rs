//! Shutting down: waiting for work whose client has gone.

use std::time::Duration;

use super::common::{Request, Server, send_raw};

#[tokio::test]
async fn draining_waits_for_work_whose_client_has_gone() {
    let server = Server::start().await;
    let gate = server.script.stop();
    let connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    gate.arrival().await;
    drop(connection);
    server.has_dropped_one().await;
    let draining = tokio::spawn({
        let layer = server.layer.clone();
        async move { layer.drain(Duration::from_secs(10)).await }
    });
    gate.let_go();
    assert!(draining.await.unwrap().is_complete());
    assert_eq!(server.script.done(), 1);
    assert!(server.charge("k").await.is_replayed());
}

#[tokio::test]
async fn draining_says_what_it_left() {
    let server = Server::start().await;
    let gate = server.script.stop();
    let _connection = send_raw(server.address, &Request::charge("secret-key").bytes()).await;
    gate.arrival().await;
    let drained = server.layer.drain(Duration::from_millis(10)).await;
    assert!(!drained.is_complete());
    assert_eq!((drained.in_flight, drained.left.len()), (1, 1));
    let left = &drained.left[0];
    assert_eq!(left.operation.as_str(), "POST /charges");
    assert_eq!(left.record.len(), 16);
    assert!(!format!("{drained:?}").contains("secret-key"));
    assert!(left.running_for >= Duration::from_millis(10));
    gate.let_go();
    assert!(
        server
            .layer
            .drain(Duration::from_secs(10))
            .await
            .is_complete()
    );
}

#[tokio::test]
async fn an_outcome_that_is_being_stored_is_waited_for() {
    let server = Server::start().await;
    let gate = server.store.stop_finish();
    let connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    gate.arrival().await;
    drop(connection);
    server.has_dropped_one().await;
    let drained = server.layer.drain(Duration::from_millis(10)).await;
    assert_eq!(drained.in_flight, 1);
    gate.let_go();
    assert!(
        server
            .layer
            .drain(Duration::from_secs(10))
            .await
            .is_complete()
    );
}
